// The tiles a thread works on, and how they lie in its part of the workspace. carve_* run over an
// empty Arena to find a workspace's size and over the real one to lay it out.
#pragma once

#include "core/mask.h"
#include "core/softmax_state.h"
#include "cpu/simd/matrix.h"
#include "tilewise/plan.hpp"

namespace tilewise::cpu {

// Rows of scores in flight: 32 x 192 f32 = 24 KiB, half of L1.
inline constexpr int64_t kPanel = 32;

// Where a step is: which queries meet which keys, and what the mask says about them.
struct Panel {
  Span q, k;
  TileClass tile;
};

struct QueryTile {
  Matrix q;             // rows x D
  Matrix o;             // rows x Dv, not yet divided by the sum
  SoftmaxState* state;  // rows
  QueryTile from_row(int64_t r) const { return {q.from_row(r), o.from_row(r), state + r}; }
};

struct KeyTile {
  Matrix kt;  // D x keys
  Matrix v;   // keys x Dv
  bool v_finite = true;
};

struct PanelScratch {
  Matrix s;  // kPanel x keys: scores, then weights
  Matrix z;  // kPanel x keys: dropout factors
  Matrix p;  // kPanel x keys: weights as parts. One part takes half the room of s, and its place
  float* lane_sums;  // kPanel vectors: what the step adds to each row's sum
};

struct ForwardTiles {
  QueryTile query;
  KeyTile key;
  PanelScratch panel[2];  // the second for operands whose panels overlap
};

// How a kernel keeps its operands: 0 as f32, else as so many bf16 parts, in pairs
// (simd/parts-inl.h).
using Parts = int;

// Operands of rows with the depth along them, and of columns or values with the depth across. Tiles
// are read whole: 32 rows, 32 columns.
inline Matrix carve_rows(Arena& arena, int64_t rows, int64_t depth, Parts parts) {
  if (parts == 0) return arena.matrix(rows, depth);
  Matrix m = arena.matrix(round_up(rows, int64_t{32}), parts * pairs_of(depth));
  m.part = pairs_of(depth);
  return m;
}
inline Matrix carve_across(Arena& arena, int64_t depth, int64_t cols, Parts parts) {
  if (parts == 0) return arena.matrix(padded(depth), cols);
  const int64_t rows = pairs_of(depth) + kPad;  // values may be used from a row inside a tile
  Matrix m = arena.matrix(saturated_product(parts, rows), round_up(cols, int64_t{32}));
  arena.take<float>(kPad);
  m.part = rows * m.stride;
  return m;
}

inline QueryTile carve_query(Arena& arena, const Problem& p, int64_t rows, Parts parts) {
  return {carve_rows(arena, rows, p.head_dim, parts), arena.matrix(rows, p.head_dim_v),
          arena.take<SoftmaxState>(rows)};
}

inline KeyTile carve_key(Arena& arena, const Problem& p, int64_t rows, Parts parts) {
  // V's place also holds K's rows before they are transposed.
  const int64_t d = parts == 0 ? p.head_dim : round_up(p.head_dim, int64_t{32});
  return {carve_across(arena, p.head_dim, rows, parts),
          carve_across(arena, rows, max_of(d, p.head_dim_v), parts)};
}

inline PanelScratch carve_panel(Arena& arena, const Problem& p, int64_t keys, Parts parts = 0) {
  PanelScratch t = {arena.matrix(kPanel, round_up(keys, int64_t{32})),
                    arena.matrix(p.dropout_p > 0 ? kPanel : 0, keys),
                    {},
                    arena.take<float>(kPanel * kPad)};
  t.p = parts > 1 ? carve_rows(arena, kPanel, keys, parts) : t.s;
  return t;
}

// `heads`: query tiles that lie one after another.
inline ForwardTiles carve_forward(Arena& arena, const Problem& p, const PassPlan& pass, Parts parts,
                                  int64_t heads = 1) {
  ForwardTiles t = {carve_query(arena, p, saturated_product(heads, pass.tile_q), parts),
                    carve_key(arena, p, pass.tile_kv, parts),
                    {carve_panel(arena, p, pass.tile_kv, parts), {}}};
  if (parts != 0) t.panel[1] = carve_panel(arena, p, pass.tile_kv, parts);
  return t;
}

// fa1: the running O and (m, l) of a whole head.
inline QueryTile carve_running(Arena& arena, const Problem& p) {
  return {{}, arena.matrix(p.seq_q, p.head_dim_v), arena.take<SoftmaxState>(p.seq_q)};
}

// standard: the whole score matrix and its rows' statistics.
struct Scores {
  Matrix s;
  SoftmaxState* state;
};
inline Scores carve_scores(Arena& arena, const Problem& p) {
  return {arena.matrix(p.seq_q, p.seq_kv), arena.take<SoftmaxState>(p.seq_q)};
}

}  // namespace tilewise::cpu
