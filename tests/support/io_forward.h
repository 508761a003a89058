// The forward loop orders over a two-level memory: visitors for the walks of core/schedule.h, which
// the kernels run too. Each run_ function does all query heads of one kv head and leaves O and LSE.
#pragma once

#include <optional>

#include "support/io_problem.h"

namespace tilewise::testing {

struct CountFa2 {
  TwoLevelMemory& fast;
  KvHead& kv;
  QueryHead& head;
  std::optional<FastTile> q_tile, o, stats;

  void load_q(Span q) {
    q_tile.emplace(fast, head.q, Corner{q.begin, 0}, Corner{q.size(), kv.d});
    o.emplace(fast, q.size(), kv.dv);
    stats.emplace(fast, q.size(), 2);
    reset_stats(*stats);
  }
  void step(Span q, Span k, TileClass) {
    FastTile k_tile(fast, kv.k, {k.begin, 0}, {k.size(), kv.d});
    FastTile v_tile(fast, kv.v, {k.begin, 0}, {k.size(), kv.dv});
    FastTile s(fast, q.size(), k.size());
    fill_scores(s, {fast, kv, head, q, k}, *q_tile, k_tile);
    online_softmax(s, *stats, &*o);
    add_product(*o, s, v_tile);
  }
  void store_o(Span q) {
    finish_rows(fast, head, q, *o, *stats);
    q_tile.reset();
    o.reset();
    stats.reset();
  }
};

inline void run_fa2(TwoLevelMemory& fast, KvHead& kv, const TileGrid& grid) {
  for (QueryHead& head : kv.heads) {
    CountFa2 visitor{fast, kv, head, {}, {}, {}};
    for (std::int64_t i = 0; i < grid.q_tiles(); ++i) walk_fa2(grid, grid.q_span(i), visitor);
  }
}

// O and the statistics are started in slow memory, go in and out at every step, and are finished by
// a pass of their own.
struct CountFa1 {
  TwoLevelMemory& fast;
  KvHead& kv;
  std::optional<FastTile> k_tile, v_tile;

  void start(QueryHead& head, Span q) {
    FastTile o(fast, q.size(), kv.dv), stats(fast, q.size(), 2);
    reset_stats(stats);
    o.store(head.running_o, {q.begin, 0});
    stats.store(head.running_stats, {q.begin, 0});
  }
  void load_kv(Span k) {
    k_tile.emplace(fast, kv.k, Corner{k.begin, 0}, Corner{k.size(), kv.d});
    v_tile.emplace(fast, kv.v, Corner{k.begin, 0}, Corner{k.size(), kv.dv});
  }
  void step(Span q, Span k, TileClass) {
    for (QueryHead& head : kv.heads) {
      FastTile q_tile(fast, head.q, {q.begin, 0}, {q.size(), kv.d});
      FastTile o(fast, head.running_o, {q.begin, 0}, {q.size(), kv.dv});
      FastTile stats(fast, head.running_stats, {q.begin, 0}, {q.size(), 2});
      FastTile s(fast, q.size(), k.size());
      fill_scores(s, {fast, kv, head, q, k}, q_tile, *k_tile);
      online_softmax(s, stats, &o);
      add_product(o, s, *v_tile);
      o.store(head.running_o, {q.begin, 0});
      stats.store(head.running_stats, {q.begin, 0});
    }
  }
  void store_kv(Span) {
    k_tile.reset();
    v_tile.reset();
  }
  void finish(QueryHead& head, Span q) {
    FastTile o(fast, head.running_o, {q.begin, 0}, {q.size(), kv.dv});
    FastTile stats(fast, head.running_stats, {q.begin, 0}, {q.size(), 2});
    finish_rows(fast, head, q, o, stats);
  }
};

inline void run_fa1(TwoLevelMemory& fast, KvHead& kv, const TileGrid& grid) {
  CountFa1 visitor{fast, kv, {}, {}};
  auto for_all_rows = [&](auto&& visit) {
    for (QueryHead& head : kv.heads)
      for_blocks(grid.mask.seq_q, grid.tile_q, [&](Span q) { visit(head, q); });
  };
  for_all_rows([&](QueryHead& head, Span q) { visitor.start(head, q); });
  for (std::int64_t j = 0; j < grid.kv_tiles(); ++j) walk_fa1(grid, grid.kv_span(j), visitor);
  for_all_rows([&](QueryHead& head, Span q) { visitor.finish(head, q); });
}

struct CountStandard {
  TwoLevelMemory& fast;
  KvHead& kv;
  QueryHead& head;
  std::optional<FastTile> q_tile, o;

  void begin_scores(Span q) {
    q_tile.reset();
    q_tile.emplace(fast, head.q, Corner{q.begin, 0}, Corner{q.size(), kv.d});
  }
  void scores(Span q, Span k) {
    FastTile k_tile(fast, kv.k, {k.begin, 0}, {k.size(), kv.d});
    FastTile s(fast, q.size(), k.size());
    fill_scores(s, {fast, kv, head, q, k}, *q_tile, k_tile);
    s.store(head.s, {q.begin, k.begin});
  }
  void softmax(Span q) {
    q_tile.reset();
    for (std::int64_t i = q.begin; i < q.end; ++i) softmax_row(i);
  }
  // A row that fits is read once; of a longer one the statistics are found first, then it is read
  // again.
  void softmax_row(std::int64_t i) {
    const std::int64_t cols = kv.mask.seq_kv;
    const std::int64_t step = min_of(cols, static_cast<std::int64_t>(fast.capacity() / 4));
    float top = kNegInf, sum = 0;
    auto measure = [&](FastTile& row) {
      float block_top = top;
      for (std::int64_t j = 0; j < row.cols(); ++j) block_top = std::max(block_top, row(0, j));
      if (block_top == kNegInf) return;
      sum *= std::exp(top - block_top);
      top = block_top;
      for (std::int64_t j = 0; j < row.cols(); ++j) sum += std::exp(row(0, j) - top);
    };
    auto divide = [&](FastTile& row) {
      for (std::int64_t j = 0; j < row.cols(); ++j)
        row(0, j) = sum > 0 ? std::exp(row(0, j) - top) / sum : 0;
    };
    if (step < cols)
      for_blocks(cols, step, [&](Span k) {
        FastTile row(fast, head.s, {i, k.begin}, {1, k.size()});
        if (fast.has_values()) measure(row);
      });
    for_blocks(cols, step, [&](Span k) {
      FastTile row(fast, head.s, {i, k.begin}, {1, k.size()});
      if (fast.has_values() && step == cols) measure(row);
      if (fast.has_values()) divide(row);
      row.store(head.p, {i, k.begin});
    });
    fast.move(head.lse.element_bytes);
    if (fast.has_values()) head.lse.at(i, 0) = sum > 0 ? top + std::log(sum) : kNegInf;
  }
  void begin_values(Span q) { o.emplace(fast, q.size(), kv.dv); }
  void values(Span q, Span k) {
    FastTile p(fast, head.p, {q.begin, k.begin}, {q.size(), k.size()});
    FastTile v_tile(fast, kv.v, {k.begin, 0}, {k.size(), kv.dv});
    add_product(*o, p, v_tile);
  }
  void end_values(Span q) {
    o->store(head.o, {q.begin, 0});
    o.reset();
  }
};

inline void run_standard(TwoLevelMemory& fast, KvHead& kv, const TileGrid& grid) {
  for (QueryHead& head : kv.heads) {
    CountStandard visitor{fast, kv, head, {}, {}};
    walk_standard(grid, visitor);
  }
}

}  // namespace tilewise::testing
