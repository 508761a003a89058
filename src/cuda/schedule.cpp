#include "cuda/schedule.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tilewise::cuda {
namespace {

// What an item costs in key tiles, its own start and end counted as one.
double item_cost(const BandMask& band, Span queries, int tile_kv) {
  const Span keys = band.keys_of(queries);
  return 1.0 +
         static_cast<double>(ceil_div<std::int64_t>(keys.end, tile_kv) - keys.begin / tile_kv);
}

std::vector<double> item_costs(const ScheduleShape& s) {
  const std::int64_t q_tiles = ceil_div<std::int64_t>(s.band.seq_q, s.tile_q);
  std::vector<double> costs;
  for (std::int64_t t = q_tiles - 1; t >= 0; --t)
    costs.push_back(item_cost(s.band, {t * s.tile_q, (t + 1) * s.tile_q}, s.tile_kv));
  return costs;
}

double imbalance_of(const ScheduleShape& s, const std::vector<double>& costs,
                    std::int64_t section) {
  std::vector<double> load(static_cast<std::size_t>(s.ctas));
  std::int64_t item = 0;
  for (std::int64_t first = 0; first < s.heads; first += section) {
    const std::int64_t heads = std::min(section, s.heads - first);
    for (const double cost : costs)
      for (std::int64_t h = 0; h < heads; ++h, ++item) {
        const std::int64_t place = item % s.ctas;
        load[static_cast<std::size_t>(item / s.ctas % 2 ? s.ctas - 1 - place : place)] += cost;
      }
  }
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  return *std::max_element(load.begin(), load.end()) * s.ctas / sum;
}

}  // namespace

int section_heads(const ScheduleShape& s) {
  constexpr std::int64_t kL2Bytes = 40 << 20;  // of 50 MiB
  constexpr int kCandidates = 24;
  constexpr std::int64_t kLongKeys = 4096;  // CTAs that walk the same keys meet in L2 by themselves
  constexpr double kMissesCost = 1.04;
  constexpr std::int64_t kMostItems = 1 << 16;
  const std::int64_t fit =
      std::max<std::int64_t>(1, kL2Bytes / std::max<std::int64_t>(1, s.kv_bytes)) * s.heads_per_kv;
  const auto costs = item_costs(s);
  if (s.heads * static_cast<std::int64_t>(costs.size()) > kMostItems || costs.empty())
    return static_cast<int>(std::min(fit, s.heads));  // so many that remainders don't matter
  std::int64_t best = std::min(fit, s.heads);
  double least = imbalance_of(s, costs, best);
  const auto consider = [&](std::int64_t section) {
    const double found = imbalance_of(s, costs, section);
    if (found < least) best = section, least = found;
  };
  const std::int64_t step = std::max<std::int64_t>(1, fit / kCandidates);
  for (std::int64_t section = fit / 2 + 1; section < std::min(fit, s.heads); section += step)
    consider(section);
  // All heads at once balance best, but miss L2 more often than sections do.
  if (s.band.seq_kv >= kLongKeys && imbalance_of(s, costs, s.heads) * kMissesCost < least)
    best = s.heads;
  return static_cast<int>(best);
}

int packed_heads(const PackingShape& s) {
  constexpr std::int64_t kManyQueries = 2048;  // tiles are full either way
  constexpr int kMostPacked = 64;              // rows of a consumer
  constexpr double kWorthIt = 0.97;
  if (s.band.seq_q > kManyQueries) return 1;
  const auto cost_of = [&](int packed) {
    const std::int64_t queries = s.tile_q / packed;
    double cost = 0;
    for (std::int64_t q = 0; q < s.band.seq_q; q += queries)
      cost += item_cost(s.band, {q, q + queries}, s.tile_kv);
    return cost * static_cast<double>(s.group / packed);
  };
  int best = 1;
  double least = cost_of(1) * kWorthIt;
  for (int packed = 2; packed <= std::min<std::int64_t>(s.group, kMostPacked); ++packed) {
    if (s.group % packed) continue;
    if (const double cost = cost_of(packed); cost < least) best = packed, least = cost;
  }
  return best;
}

double imbalance(const ScheduleShape& s, std::int64_t section) {
  return imbalance_of(s, item_costs(s), section);
}

}  // namespace tilewise::cuda
