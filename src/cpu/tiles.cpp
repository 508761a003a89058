#include "cpu/tiles.h"

#include <algorithm>

#include "cpu/simd/matrix.h"

namespace tilewise::cpu {
namespace {

// No larger than the sequence, so that short problems don't pay for rows they lack.
std::int64_t fit(std::int64_t tile, std::int64_t length) {
  return std::clamp(round_up(length, kTileStep), kTileStep, tile);
}

std::int64_t key_tile(const Problem& problem) {
  // K^T, V and a panel of scores share L2 with the query tile. Whole column blocks of the products
  // (48 and 24 floats), and no power of two, whose rows would crowd into few sets of L1: 192 runs
  // 6% ahead of 128 and 15% ahead of 256 on Zen 5.
  const std::int64_t d = std::max(problem.head_dim, problem.head_dim_v);
  return fit(d <= 128 ? 192 : 96, problem.seq_kv);
}

}  // namespace

int worthwhile_threads(double flops, double bytes, int most) {
  // 20 us of a core, bound by its products or by memory.
  constexpr double kFlops = 4e6, kBytes = 4e5;
  const double worth = std::max(flops / kFlops, bytes / kBytes);
  return worth >= most ? most : std::max(1, static_cast<int>(worth));
}

// A long query tile shares the packing of K and V among more rows; a short one gives every thread
// something to do. A row's numbers don't depend on the query tile, so this may look at the threads.
Tiles forward_tiles(const Problem& problem, const Options& options, int threads) {
  const std::int64_t d = std::max(problem.head_dim, problem.head_dim_v);
  std::int64_t q = d <= 128 ? 1024 : 512;
  const std::int64_t heads = std::max<std::int64_t>(1, problem.batch * problem.heads_q);
  while (q > 32 && heads * ceil_div(problem.seq_q, q) < 4 * threads) q /= 2;
  return {options.tile_q ? options.tile_q : fit(q, problem.seq_q),
          options.tile_kv ? options.tile_kv : key_tile(problem)};
}

bool has_few_queries(const Problem& problem) {
  if (problem.heads_kv == 0) return false;
  const std::int64_t queries = problem.seq_q * (problem.heads_q / problem.heads_kv);
  return queries <= kFewQueries && problem.seq_kv >= 8 * queries;
}

// Enough splits for many threads, long enough that merging them costs nothing.
Tiles split_tiles(const Problem& problem, const Options& options, int /*threads*/) {
  constexpr std::int64_t kItems = 64, kShortest = 256;
  const std::int64_t keys = ceil_div(problem.batch * problem.seq_kv, kItems);
  return {kFewQueries, options.tile_kv
                           ? options.tile_kv
                           : std::clamp(round_up(keys, kTileStep), kShortest, kMaxTile)};
}

// The sums of dK, dV and dQ run over tiles, so these depend on the problem alone.
Tiles backward_tiles(const Problem& problem, const Options& options) {
  return {options.tile_q ? options.tile_q : fit(64, problem.seq_q),
          options.tile_kv ? options.tile_kv : key_tile(problem)};
}

}  // namespace tilewise::cpu
