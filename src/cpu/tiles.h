// Tile sizes of the CPU kernels.
#pragma once

#include "tilewise/plan.hpp"

namespace tilewise::cpu {

struct Tiles {
  std::int64_t q, kv;
};

// What Options::tile_q and tile_kv accept: multiples of this, up to kMaxTile.
inline constexpr std::int64_t kTileStep = 16;
inline constexpr std::int64_t kMaxTile = 1024;

// Queries of one kv head that the split kernel takes at a time.
inline constexpr std::int64_t kFewQueries = 16;

// Threads that a pass is worth: starting one takes about as long as this much work, so tiny
// problems get one.
int worthwhile_threads(double flops, double bytes, int most);

Tiles forward_tiles(const Problem& problem, const Options& options, int threads);
// How many query heads of a group the fa2 kernel brings to a packed key tile one after another: as
// many as fill up a long query tile, if every thread still finds something to do.
inline constexpr std::int64_t kMostHeads = 16;
std::int64_t heads_together(const Problem& problem, std::int64_t tile_q, int threads);
// For the split kernel: tile_kv keys to a split. Splits decide the order of sums, so they depend on
// the problem alone.
Tiles split_tiles(const Problem& problem, const Options& options, int threads);
bool has_few_queries(const Problem& problem);
Tiles backward_tiles(const Problem& problem, const Options& options);

}  // namespace tilewise::cpu
