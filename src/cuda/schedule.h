// How work is cut and dealt out.
//
// How many heads share a section of a longest-first schedule (device/attention/work.h). Few enough
// that their K and V share L2; and such that dealing the items out back and forth loads the
// multiprocessors evenly, which is simulated, since the remainders decide it.
#pragma once

#include <cstdint>

#include "core/mask.h"

namespace tilewise::cuda {

struct ScheduleShape {
  std::int64_t heads;         // of all batches
  std::int64_t heads_per_kv;  // query heads that read the same K and V
  std::int64_t kv_bytes;      // of one K and V head
  BandMask band;
  int tile_q, tile_kv;
  int ctas;
};

int section_heads(const ScheduleShape& shape);

// How many of the `group` query heads of a kv head should share the rows of a tile (a divisor): 1,
// unless more make the CTAs visit fewer key tiles, as they do where queries are few.
struct PackingShape {
  std::int64_t group;
  BandMask band;
  int tile_q, tile_kv;
};
int packed_heads(const PackingShape& shape);

// The busiest CTA's load over the mean load, 1 at best; for tests and tuning.
double imbalance(const ScheduleShape& shape, std::int64_t section_heads);

}  // namespace tilewise::cuda
