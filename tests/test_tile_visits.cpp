// count_visits against the walk that it stands for: every tile that for_visible_kv and
// for_visible_q visit, over random bands, lengths and tiles.
#include <gtest/gtest.h>

#include <random>

#include "core/schedule.h"
#include "plan/tile_visits.h"

namespace tilewise {
namespace {

Visits walk_keys(const TileGrid& grid) {
  Visits seen;
  for (int64_t i = 0; i < grid.q_tiles(); ++i) {
    const Span q = grid.q_span(i);
    for_visible_kv(grid, q, [&](Span k, TileClass) {
      seen.inner_rows += static_cast<double>(k.size());
      seen.scores += static_cast<double>(k.size() * q.size());
    });
  }
  return seen;
}

Visits walk_queries(const TileGrid& grid) {
  Visits seen;
  for (int64_t j = 0; j < grid.kv_tiles(); ++j) {
    const Span k = grid.kv_span(j);
    for_visible_q(grid, k, [&](Span q, TileClass) {
      seen.inner_rows += static_cast<double>(q.size());
      seen.scores += static_cast<double>(k.size() * q.size());
    });
  }
  return seen;
}

TEST(TileVisits, AgreesWithTheWalks) {
  std::mt19937_64 rng(std::random_device{}());
  auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 20000; ++round) {
    BandMask mask{draw(0, 70), draw(0, 70)};
    if (draw(0, 2)) mask.lo = draw(-90, 90);
    if (draw(0, 2)) mask.hi = draw(-90, 90);
    const TileGrid grid{mask, draw(1, 20), draw(1, 20)};
    const Visits keys = count_visits(mask, {grid.tile_q, grid.tile_kv});
    const Visits queries = count_visits(transposed(mask), {grid.tile_kv, grid.tile_q});
    const Visits keys_seen = walk_keys(grid), queries_seen = walk_queries(grid);
    ASSERT_TRUE(keys.inner_rows == keys_seen.inner_rows && keys.scores == keys_seen.scores &&
                queries.inner_rows == queries_seen.inner_rows &&
                queries.scores == queries_seen.scores)
        << "Sq " << mask.seq_q << ", Sk " << mask.seq_kv << ", lo " << mask.lo << ", hi " << mask.hi
        << ", tile_q " << grid.tile_q << ", tile_kv " << grid.tile_kv << ": rows "
        << keys.inner_rows << " / " << keys_seen.inner_rows << ", by keys " << queries.inner_rows
        << " / " << queries_seen.inner_rows;
  }
}

TEST(TileVisits, TakesLengthsThatNoWalkCould) {
  const int64_t length = int64_t{1} << 40;
  const BandMask causal = make_band({length, length, true, -1, -1, true});
  const double half = static_cast<double>(length) * static_cast<double>(length) / 2;
  EXPECT_NEAR(count_visits(causal, {128, 64}).scores / half, 1, 1e-6);
}

}  // namespace
}  // namespace tilewise
