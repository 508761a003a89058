// The tiles a thread works on, and how they lie in its part of the workspace. carve_* run over an
// empty Arena to find a workspace's size and over the real one to lay it out.
#pragma once

#include "core/mask.h"
#include "core/softmax_state.h"
#include "cpu/simd/matrix.h"
#include "tilewise/plan.hpp"

namespace tilewise::cpu {

// Rows of scores in flight: 32 x 128 f32 = 16 KiB, a third of L1.
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
};

struct ForwardTiles {
  QueryTile query;
  KeyTile key;
  PanelScratch panel;
};

inline QueryTile carve_query(Arena& arena, const Problem& p, int64_t rows) {
  return {arena.matrix(rows, p.head_dim), arena.matrix(rows, p.head_dim_v),
          arena.take<SoftmaxState>(rows)};
}

inline KeyTile carve_key(Arena& arena, const Problem& p, int64_t rows) {
  // V's rows also hold K's before it is transposed.
  return {arena.matrix(padded(p.head_dim), rows),
          arena.matrix(rows, max_of(p.head_dim, p.head_dim_v))};
}

inline PanelScratch carve_panel(Arena& arena, const Problem& p, int64_t keys) {
  return {arena.matrix(kPanel, keys), arena.matrix(p.dropout_p > 0 ? kPanel : 0, keys)};
}

inline ForwardTiles carve_forward(Arena& arena, const Problem& p, const PassPlan& pass) {
  return {carve_query(arena, p, pass.tile_q), carve_key(arena, p, pass.tile_kv),
          carve_panel(arena, p, pass.tile_kv)};
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
