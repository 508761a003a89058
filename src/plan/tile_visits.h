// How much a tiled loop visits under a mask, in closed form: the plan prices problems of any length
// without walking their tiles. Agrees exactly with for_visible_kv and for_visible_q of
// core/schedule.h (a test holds them together).
#pragma once

#include "core/mask.h"

namespace tilewise {

struct TileSize {
  int64_t outer = 1;  // rows of a tile that stays
  int64_t inner = 1;  // rows of a tile that streams past
};

struct Visits {
  double inner_rows = 0;  // rows of all the inner tiles visited, over all outer tiles
  double scores = 0;      // elements of all the score tiles visited
};

// Queries outside, keys inside. O(log S).
Visits count_visits(const BandMask& mask, TileSize tile);

// The mask with the roles of queries and keys exchanged: count_visits of it has keys outside.
BandMask transposed(const BandMask& mask);

}  // namespace tilewise
