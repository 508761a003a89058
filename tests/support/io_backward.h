// The backward loop orders over a two-level memory, as io_forward.h. They take O and LSE from a
// forward run and leave dQ, dK and dV. With P = exp(S - LSE) and delta = rowsum(O dO):
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - delta),  dQ = scale dS K,  dK = scale dS^T Q.
#pragma once

#include <optional>

#include "support/io_problem.h"

namespace tilewise::testing {

inline float probability(float s, float lse) {
  return s == kNegInf ? 0 : std::exp(s - lse);
}

// Scores become P; dp becomes scale * dS.
inline void softmax_backward(FastTile& s, FastTile& dp, const FastTile& lse, const FastTile& delta,
                             float scale) {
  if (!s.has_values()) return;
  for (std::int64_t i = 0; i < s.rows(); ++i)
    for (std::int64_t j = 0; j < s.cols(); ++j) {
      s(i, j) = probability(s(i, j), lse(i, 0));
      dp(i, j) = scale * s(i, j) * (dp(i, j) - delta(i, 0));
    }
}

inline void row_dots(FastTile& delta, const FastTile& o, const FastTile& d_o) {
  if (!delta.has_values()) return;
  for (std::int64_t i = 0; i < o.rows(); ++i)
    for (std::int64_t j = 0; j < o.cols(); ++j) delta(i, 0) += o(i, j) * d_o(i, j);
}

inline void prepare_delta(TwoLevelMemory& fast, KvHead& kv, std::int64_t tile_q) {
  for (QueryHead& head : kv.heads)
    for_blocks(kv.mask.seq_q, tile_q, [&](Span q) {
      FastTile o(fast, head.o, {q.begin, 0}, {q.size(), kv.dv});
      FastTile d_o(fast, head.d_o, {q.begin, 0}, {q.size(), kv.dv});
      FastTile delta(fast, q.size(), 1);
      row_dots(delta, o, d_o);
      delta.store(head.delta, {q.begin, 0});
    });
}

// A running sum in slow memory: zeros at first, and at the end rounded to its output.
inline void start_sum(TwoLevelMemory& fast, SlowMatrix& running, std::int64_t step) {
  for_blocks(running.rows, step, [&](Span r) {
    FastTile(fast, r.size(), running.cols).store(running, {r.begin, 0});
  });
}
inline void finish_sum(TwoLevelMemory& fast, const SlowMatrix& running, SlowMatrix& out,
                       std::int64_t step) {
  for_blocks(running.rows, step, [&](Span r) {
    FastTile(fast, running, {r.begin, 0}, {r.size(), running.cols}).store(out, {r.begin, 0});
  });
}

// The tiles of one query block that the tiled backward reads.
struct QueryTiles {
  FastTile q, d_o, lse, delta;
  QueryTiles(TwoLevelMemory& fast, const KvHead& kv, const QueryHead& head, Span rows)
      : q(fast, head.q, {rows.begin, 0}, {rows.size(), kv.d}),
        d_o(fast, head.d_o, {rows.begin, 0}, {rows.size(), kv.dv}),
        lse(fast, head.lse, {rows.begin, 0}, {rows.size(), 1}),
        delta(fast, head.delta, {rows.begin, 0}, {rows.size(), 1}) {}
};

// The tiles of one key block, and the gradients that it gathers.
struct KeyTiles {
  FastTile k, v, dk, dv;
  KeyTiles(TwoLevelMemory& fast, const KvHead& kv, Span rows)
      : k(fast, kv.k, {rows.begin, 0}, {rows.size(), kv.d}),
        v(fast, kv.v, {rows.begin, 0}, {rows.size(), kv.dv}),
        dk(fast, rows.size(), kv.d),
        dv(fast, rows.size(), kv.dv) {}
};

inline void backward_step(const ScoreTile& at, const QueryTiles& rows, KeyTiles& keys,
                          FastTile& dq) {
  FastTile p(at.fast, at.q.size(), at.k.size()), ds(at.fast, at.q.size(), at.k.size());
  fill_scores(p, at, rows.q, keys.k);
  add_product_bt(ds, rows.d_o, keys.v);
  softmax_backward(p, ds, rows.lse, rows.delta, at.kv.scale);
  add_product_at(keys.dv, p, rows.d_o);
  add_product_at(keys.dk, ds, rows.q);
  add_product(dq, ds, keys.k);
}

struct CountBackwardFa1 {
  TwoLevelMemory& fast;
  KvHead& kv;
  std::optional<KeyTiles> keys;

  void load_kv(Span k) { keys.emplace(fast, kv, k); }
  void step(Span q, Span k, TileClass) {
    for (QueryHead& head : kv.heads) {
      const QueryTiles rows(fast, kv, head, q);
      FastTile dq(fast, head.running_dq, {q.begin, 0}, {q.size(), kv.d});
      backward_step({fast, kv, head, q, k}, rows, *keys, dq);
      dq.store(head.running_dq, {q.begin, 0});
    }
  }
  void store_kv(Span k) {
    keys->dk.store(kv.dk, {k.begin, 0});
    keys->dv.store(kv.dv_grad, {k.begin, 0});
    keys.reset();
  }
};

inline void run_backward_fa1(TwoLevelMemory& fast, KvHead& kv, const TileGrid& grid) {
  prepare_delta(fast, kv, grid.tile_q);
  for (QueryHead& head : kv.heads) start_sum(fast, head.running_dq, grid.tile_q);
  CountBackwardFa1 visitor{fast, kv, {}};
  for (std::int64_t j = 0; j < grid.kv_tiles(); ++j) walk_fa1(grid, grid.kv_span(j), visitor);
  for (QueryHead& head : kv.heads) finish_sum(fast, head.running_dq, head.dq, grid.tile_q);
}

struct CountBackwardFa2 {
  TwoLevelMemory& fast;
  KvHead& kv;
  QueryHead& head;
  std::optional<QueryTiles> rows;
  std::optional<FastTile> dq;

  void load_q(Span q) {
    rows.emplace(fast, kv, head, q);
    dq.emplace(fast, q.size(), kv.d);
  }
  void step(Span q, Span k, TileClass) {
    KeyTiles keys(fast, kv, k);
    keys.dk.load(kv.running_dk, {k.begin, 0});
    keys.dv.load(kv.running_dv, {k.begin, 0});
    backward_step({fast, kv, head, q, k}, *rows, keys, *dq);
    keys.dk.store(kv.running_dk, {k.begin, 0});
    keys.dv.store(kv.running_dv, {k.begin, 0});
  }
  void store_o(Span q) {
    dq->store(head.dq, {q.begin, 0});
    rows.reset();
    dq.reset();
  }
};

inline void run_backward_fa2(TwoLevelMemory& fast, KvHead& kv, const TileGrid& grid) {
  prepare_delta(fast, kv, grid.tile_q);
  start_sum(fast, kv.running_dk, grid.tile_kv);
  start_sum(fast, kv.running_dv, grid.tile_kv);
  for (QueryHead& head : kv.heads) {
    CountBackwardFa2 visitor{fast, kv, head, {}, {}};
    for (std::int64_t i = 0; i < grid.q_tiles(); ++i) walk_fa2(grid, grid.q_span(i), visitor);
  }
  finish_sum(fast, kv.running_dk, kv.dk, grid.tile_kv);
  finish_sum(fast, kv.running_dv, kv.dv_grad, grid.tile_kv);
}

// Standard, first walk: S and dP; P and dS from them; dQ.
struct CountBackwardStandardQueries {
  TwoLevelMemory& fast;
  KvHead& kv;
  QueryHead& head;
  std::optional<FastTile> q_tile, d_o, dq;

  void begin_scores(Span q) {
    q_tile.reset();
    d_o.reset();
    q_tile.emplace(fast, head.q, Corner{q.begin, 0}, Corner{q.size(), kv.d});
    d_o.emplace(fast, head.d_o, Corner{q.begin, 0}, Corner{q.size(), kv.dv});
  }
  void scores(Span q, Span k) {
    {
      FastTile k_tile(fast, kv.k, {k.begin, 0}, {k.size(), kv.d});
      FastTile s(fast, q.size(), k.size());
      fill_scores(s, {fast, kv, head, q, k}, *q_tile, k_tile);
      s.store(head.s, {q.begin, k.begin});
    }
    FastTile v_tile(fast, kv.v, {k.begin, 0}, {k.size(), kv.dv});
    FastTile dp(fast, q.size(), k.size());
    add_product_bt(dp, *d_o, v_tile);
    dp.store(head.dp, {q.begin, k.begin});
  }
  void softmax(Span q) {
    q_tile.reset();
    d_o.reset();
    for (std::int64_t i = q.begin; i < q.end; ++i) {
      FastTile lse(fast, head.lse, {i, 0}, {1, 1}), delta(fast, 1, 1);
      {
        FastTile o(fast, head.o, {i, 0}, {1, kv.dv}), d_o_row(fast, head.d_o, {i, 0}, {1, kv.dv});
        row_dots(delta, o, d_o_row);
      }
      const std::int64_t step = static_cast<std::int64_t>(fast.capacity() / 8) - 1;
      for_blocks(kv.mask.seq_kv, step, [&](Span k) {
        FastTile s(fast, head.s, {i, k.begin}, {1, k.size()});
        FastTile dp(fast, head.dp, {i, k.begin}, {1, k.size()});
        softmax_backward(s, dp, lse, delta, kv.scale);
        s.store(head.p, {i, k.begin});
        dp.store(head.ds, {i, k.begin});
      });
    }
  }
  void begin_values(Span q) { dq.emplace(fast, q.size(), kv.d); }
  void values(Span q, Span k) {
    FastTile ds(fast, head.ds, {q.begin, k.begin}, {q.size(), k.size()});
    FastTile k_tile(fast, kv.k, {k.begin, 0}, {k.size(), kv.d});
    add_product(*dq, ds, k_tile);
  }
  void end_values(Span q) {
    dq->store(head.dq, {q.begin, 0});
    dq.reset();
  }
};

// Standard, second walk: dK and dV by panels of keys, so the grid has the roles exchanged ("q" is a
// span of keys) and only its last phase has work.
struct CountBackwardStandardKeys {
  TwoLevelMemory& fast;
  KvHead& kv;
  std::optional<FastTile> dk, dv;

  void begin_scores(Span) {}
  void scores(Span, Span) {}
  void softmax(Span) {}
  void begin_values(Span keys) {
    dk.emplace(fast, keys.size(), kv.d);
    dv.emplace(fast, keys.size(), kv.dv);
  }
  void values(Span keys, Span rows) {
    for (QueryHead& head : kv.heads) {
      FastTile q_tile(fast, head.q, {rows.begin, 0}, {rows.size(), kv.d});
      FastTile d_o(fast, head.d_o, {rows.begin, 0}, {rows.size(), kv.dv});
      add_block(head.p, keys, rows, d_o, *dv);
      add_block(head.ds, keys, rows, q_tile, *dk);
    }
  }
  void add_block(const SlowMatrix& scores, Span keys, Span rows, const FastTile& by,
                 FastTile& sum) {
    FastTile block(fast, scores, {rows.begin, keys.begin}, {rows.size(), keys.size()});
    add_product_at(sum, block, by);
  }
  void end_values(Span keys) {
    dk->store(kv.dk, {keys.begin, 0});
    dv->store(kv.dv_grad, {keys.begin, 0});
    dk.reset();
    dv.reset();
  }
};

inline void run_backward_standard(TwoLevelMemory& fast, KvHead& kv, const TileGrid& by_queries,
                                  const TileGrid& by_keys) {
  for (QueryHead& head : kv.heads) {
    CountBackwardStandardQueries visitor{fast, kv, head, {}, {}, {}};
    walk_standard(by_queries, visitor);
  }
  CountBackwardStandardKeys visitor{fast, kv, {}, {}};
  walk_standard(by_keys, visitor);
}

}  // namespace tilewise::testing
