#include "cpu/tiles.h"

#include <algorithm>

#include "cpu/machine.h"
#include "cpu/simd/matrix.h"

namespace tilewise::cpu {
namespace {

// No larger than the sequence, so that short problems don't pay for rows they lack.
std::int64_t fit(std::int64_t tile, std::int64_t length) {
  return std::clamp(round_up(length, kTileStep), kTileStep, tile);
}

std::int64_t key_tile(const Problem& problem) {
  // Whole column blocks of the products (48 and 24 floats), and no power of two, whose rows would
  // crowd into few sets of L1: 192 runs 6% ahead of 128 and 15% ahead of 256 on Zen 5.
  constexpr std::int64_t kLong = 192, kShort = 96;
  // K, K^T, V^T, dK and dV of a backward's key tile take half of L2; a forward needs less.
  const std::int64_t d = std::max(problem.head_dim, problem.head_dim_v);
  const std::int64_t bytes = 5 * kLong * d * static_cast<std::int64_t>(sizeof(float));
  return fit(bytes <= machine().l2_bytes / 2 ? kLong : kShort, problem.seq_kv);
}

// Rows whose Q and O stay in L2 beside a key tile.
std::int64_t long_query_tile(const Problem& problem) {
  return std::max(problem.head_dim, problem.head_dim_v) <= 128 ? 1024 : 512;
}

// Work items of a forward, of which each thread should find a few, so that none waits long for the
// last.
constexpr int kItemsPerThread = 4;
std::int64_t items(const Problem& problem, std::int64_t heads, std::int64_t tile_q) {
  // Of packed sequences seq_q is the longest only, and says nothing of the others.
  const std::int64_t tiles = problem.varlen.cu_seqlens_q
                                 ? ceil_div(problem.varlen.total_q, tile_q)
                                 : problem.batch * ceil_div(problem.seq_q, tile_q);
  return std::max<std::int64_t>(1, heads * tiles);
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
  std::int64_t q = long_query_tile(problem);
  while (q > 32 && items(problem, problem.heads_q, q) < kItemsPerThread * threads) q /= 2;
  return {options.tile_q ? options.tile_q : fit(q, problem.seq_q),
          options.tile_kv ? options.tile_kv : key_tile(problem)};
}

std::int64_t heads_together(const Problem& problem, std::int64_t tile_q, int threads) {
  const std::int64_t group = problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv);
  std::int64_t heads = std::min({group, kMostHeads, long_query_tile(problem) / tile_q});
  while (heads > 1 && (group % heads != 0 ||
                       items(problem, problem.heads_q / heads, tile_q) < kItemsPerThread * threads))
    --heads;
  return std::max<std::int64_t>(1, heads);
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
