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

Tiles forward_tiles(const Problem& problem, const Options& options, int threads);
Tiles backward_tiles(const Problem& problem, const Options& options);

}  // namespace tilewise::cpu
