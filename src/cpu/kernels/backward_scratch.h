// What the backward keeps: shared by all threads, the row statistics, the f32 dQ and whose turn it
// is to add to it; for each thread, the tiles it works on.
#pragma once

#include <atomic>

#include "cpu/kernels/scratch.h"
#include "cpu/rows.h"

namespace tilewise::cpu {

// P = exp2((s - max) * unit - log2_sum): the LSE as a leading part in the scores' units and a small
// rest, since one f32 would lose the probabilities' digits when the LSE is large. A row that saw
// nothing has max = +inf, so that P = 0.
struct RowStats {
  float max, log2_sum;
  float delta;  // rowsum(dO * O) - dLSE, so that dS = P * (dP - delta)
};

// Query tiles are numbered through all sequences; these are kept for each (query tile, query head).
struct SharedBackward {
  RowStats* stats;             // stat_count
  Matrix dq;                   // stat_count x D
  std::atomic<int32_t>* turn;  // key tiles that have been added to dQ so far
  double* dsink;               // this tile's part of the sink's gradient
  float* k_norm;               // of the longest key of each (key tile, kv head)
};

struct BackwardTiles {
  Matrix kt, k, vt;     // D x keys, keys x D, Dv x keys
  Matrix dk, dv;        // keys x D, keys x Dv
  Matrix q, d_o;        // rows x D, rows x Dv
  Matrix p, ds;         // rows x keys
  Matrix z, cap_slope;  // rows x keys: dropout factors, softcap's derivative
  // For operands of bf16 pairs: Q and dO as right operands, and room to transpose P and dS.
  Matrix q_values, do_values;
  Matrix transposed[2];
};

// A row's softmax and sum_j drop(P)_j dP_j (not yet divided by its sum), gathered over key tiles.
struct Replay {
  SoftmaxState state;
  float weighted_dp;
};

// For the pass before the main loop: rows of O and dO, and what a replay of them takes.
struct PrepareTiles {
  Matrix o, d_o, q;  // rows x Dv, rows x Dv, rows x D
  Matrix kt, vt;     // D x keys, Dv x keys
  Matrix rows;       // keys x max(D, Dv): K or V before it is transposed
  Matrix dp;         // kPanel x keys
  PanelScratch panel;
  Replay* replay;  // rows
};

inline int64_t q_tile_bound(const Problem& p, int64_t tile_q) {
  return p.varlen.cu_seqlens_q ? p.varlen.total_q / tile_q + p.batch
                               : p.batch * ceil_div(p.seq_q, tile_q);
}
inline int64_t kv_tile_bound(const Problem& p, int64_t tile_kv) {
  return p.varlen.cu_seqlens_kv ? p.varlen.total_kv / tile_kv + p.batch
                                : p.batch * ceil_div(p.seq_kv, tile_kv);
}

inline SharedBackward carve_shared(Arena& arena, const Problem& p, const PassPlan& pass) {
  const int64_t rows = stat_count(p), tiles = q_tile_bound(p, pass.tile_q) * p.heads_q;
  return {arena.take<RowStats>(rows), arena.matrix(rows, p.head_dim),
          arena.take<std::atomic<int32_t>>(tiles), arena.take<double>(p.sink ? tiles : 0),
          arena.take<float>(kv_tile_bound(p, pass.tile_kv) * p.heads_kv)};
}

inline BackwardTiles carve_backward(Arena& arena, const Problem& p, const PassPlan& pass) {
  const int64_t rows = pass.tile_q, keys = pass.tile_kv, d = p.head_dim, dv = p.head_dim_v;
  BackwardTiles t;
  t.kt = arena.matrix(padded(d), keys);
  t.k = arena.matrix(keys, d);
  t.vt = arena.matrix(padded(dv), keys);
  t.dk = arena.matrix(keys, d);
  t.dv = arena.matrix(keys, dv);
  t.q = arena.matrix(rows, d);
  t.d_o = arena.matrix(rows, dv);
  t.p = arena.matrix(rows, keys);
  t.ds = arena.matrix(rows, keys);
  t.z = arena.matrix(p.dropout_p > 0 ? rows : 0, keys);
  t.cap_slope = arena.matrix(p.softcap != 0 ? rows : 0, keys);
  if (p.dtype == DType::kBF16) {
    t.q_values = arena.matrix(rows, d);
    t.do_values = arena.matrix(rows, dv);
    t.transposed[0] = arena.matrix(rows, keys);
    t.transposed[1] = arena.matrix(round_up(keys, int64_t{32}), rows);
    arena.matrix(32, max_of(max_of(d, dv), keys));  // AMX reads whole tiles, past any of these
  }
  return t;
}

inline PrepareTiles carve_prepare(Arena& arena, const Problem& p, const PassPlan& pass) {
  const int64_t rows = pass.tile_q, keys = pass.tile_kv, d = p.head_dim, dv = p.head_dim_v;
  PrepareTiles t;
  t.o = arena.matrix(rows, dv);
  t.d_o = arena.matrix(rows, dv);
  t.q = arena.matrix(rows, d);
  t.kt = arena.matrix(padded(d), keys);
  t.vt = arena.matrix(padded(dv), keys);
  t.rows = arena.matrix(keys, max_of(d, dv));
  t.dp = arena.matrix(kPanel, keys);
  t.panel = carve_panel(arena, p, keys);
  t.replay = arena.take<Replay>(rows);
  return t;
}

// What standard attention writes down for one head.
struct StandardMatrices {
  Matrix p, ds;   // Sq x Sk
  Matrix dk, dv;  // Sk x D, Sk x Dv
};

inline StandardMatrices carve_standard(Arena& arena, const Problem& p) {
  return {arena.matrix(p.seq_q, p.seq_kv), arena.matrix(p.seq_q, p.seq_kv),
          arena.matrix(p.seq_kv, p.head_dim), arena.matrix(p.seq_kv, p.head_dim_v)};
}

inline int64_t standard_matrix_bytes(const Problem& p) {
  Arena arena;
  carve_standard(arena, p);
  return arena.bytes();
}

// One thread's part, large enough for either use.
inline int64_t backward_thread_bytes(const Problem& p, const PassPlan& pass) {
  Arena tiles, prepare;
  carve_backward(tiles, p, pass);
  carve_prepare(prepare, p, pass);
  return max_of(tiles.bytes(), prepare.bytes());
}

inline int64_t backward_shared_bytes(const Problem& p, const PassPlan& pass) {
  Arena arena;
  carve_shared(arena, p, pass);
  return arena.bytes();
}

}  // namespace tilewise::cpu
