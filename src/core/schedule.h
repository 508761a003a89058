// The loop orders of the papers, once. A Visitor supplies loads, arithmetic and stores: the kernels
// plug in SIMD, the IO counter plugs in a two-level memory that counts bytes. Tiles that no query
// sees are never visited.
//
//   fa2       for each query tile: Q stays, keys stream past              (Dao 2023, algorithm 1)
//   fa1       for each key tile: K and V stay, queries and O stream past  (Dao et al. 2022, alg. 1)
//             -- also the order of every backward
//   standard  all scores, then all row softmaxes, then all products with V (alg. 0)
#pragma once

#include "core/mask.h"

namespace tilewise {

struct TileGrid {
  BandMask mask;
  int64_t tile_q = 0;
  int64_t tile_kv = 0;

  constexpr int64_t q_tiles() const { return ceil_div(mask.seq_q, tile_q); }
  constexpr int64_t kv_tiles() const { return ceil_div(mask.seq_kv, tile_kv); }
  constexpr Span q_span(int64_t tile) const {
    return {tile * tile_q, min_of((tile + 1) * tile_q, mask.seq_q)};
  }
  constexpr Span kv_span(int64_t tile) const {
    return {tile * tile_kv, min_of((tile + 1) * tile_kv, mask.seq_kv)};
  }
};

// Calls visit(k, class) for every key tile that a query of `q` sees, in ascending order.
template <class Visit>
void for_visible_kv(const TileGrid& grid, Span q, Visit&& visit) {
  const Span keys = grid.mask.keys_of(q);
  if (keys.empty()) return;
  for (int64_t tile = keys.begin / grid.tile_kv; tile * grid.tile_kv < keys.end; ++tile) {
    const Span k = grid.kv_span(tile);
    const TileClass c = grid.mask.classify(q, k);
    if (c != TileClass::kEmpty) visit(k, c);
  }
}

// Calls visit(q, class) for every query tile that sees a key of `k`, from the last to the first:
// under a causal mask all key tiles share the last one, so backwards that work on several of them
// and add to dQ in turns are one step apart, not as many as their diagonals.
template <class Visit>
void for_visible_q(const TileGrid& grid, Span k, Visit&& visit) {
  const Span queries = grid.mask.queries_of(k);
  if (queries.empty()) return;
  for (int64_t tile = ceil_div(queries.end, grid.tile_q) - 1;
       (tile + 1) * grid.tile_q > queries.begin; --tile) {
    const Span q = grid.q_span(tile);
    const TileClass c = grid.mask.classify(q, k);
    if (c != TileClass::kEmpty) visit(q, c);
  }
}

// One query tile of fa2. Visitor: load_q(q), step(q, k, class), store_o(q).
template <class Visitor>
void walk_fa2(const TileGrid& grid, Span q, Visitor& v) {
  v.load_q(q);
  for_visible_kv(grid, q, [&](Span k, TileClass c) { v.step(q, k, c); });
  v.store_o(q);
}

// One key tile of fa1 and of the backward. Visitor: load_kv(k), step(q, k, class), store_kv(k).
template <class Visitor>
void walk_fa1(const TileGrid& grid, Span k, Visitor& v) {
  v.load_kv(k);
  for_visible_q(grid, k, [&](Span q, TileClass c) { v.step(q, k, c); });
  v.store_kv(k);
}

// All of standard attention for one head. Visitor: scores(q, k), softmax(q), values(q, k), and
// begin(q) / end(q) around the key tiles of one query tile in the first and last phase.
template <class Visitor>
void walk_standard(const TileGrid& grid, Visitor& v) {
  const int64_t q_tiles = grid.q_tiles(), kv_tiles = grid.kv_tiles();
  for (int64_t i = 0; i < q_tiles; ++i) {
    v.begin_scores(grid.q_span(i));
    for (int64_t j = 0; j < kv_tiles; ++j) v.scores(grid.q_span(i), grid.kv_span(j));
  }
  for (int64_t i = 0; i < q_tiles; ++i) v.softmax(grid.q_span(i));
  for (int64_t i = 0; i < q_tiles; ++i) {
    v.begin_values(grid.q_span(i));
    for (int64_t j = 0; j < kv_tiles; ++j) v.values(grid.q_span(i), grid.kv_span(j));
    v.end_values(grid.q_span(i));
  }
}

}  // namespace tilewise
