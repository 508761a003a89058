#include "cpu/kernels/split.h"

namespace tilewise::cpu {
namespace {

int64_t group_of(const Problem& p) {
  return p.heads_kv == 0 ? 0 : p.heads_q / p.heads_kv;
}

int64_t rows_of(const Problem& p, const PassPlan& pass) {
  return min_of(pass.tile_q, saturated_product(group_of(p), p.seq_q));
}

}  // namespace

SplitGrid split_grid(const Problem& p, const PassPlan& pass) {
  if (p.heads_kv == 0) return {};
  const int64_t blocks = ceil_div(saturated_product(group_of(p), p.seq_q), pass.tile_q);
  return {group_of(p), p.heads_kv * blocks, blocks, ceil_div(p.seq_kv, pass.tile_kv), pass.tile_kv};
}

Span keys_of_all(const Sequence& seq, const Head& head, Span keys) {
  const Span seen = head.score.mask.keys_of({0, seq.q_used});
  return {max_of(keys.begin, seen.begin / 16 * 16), min_of(keys.end, seen.end)};
}

SplitPartials carve_partials(Arena& arena, const Problem& p, const PassPlan& pass) {
  const SplitGrid grid = split_grid(p, pass);
  const int64_t rows = rows_of(p, pass);
  const int64_t blocks = saturated_product(p.batch, grid.blocks);
  const int64_t all = saturated_product(saturated_product(blocks, grid.splits), rows);
  return {{{}, arena.matrix(all, p.head_dim_v), arena.take<SoftmaxState>(all)},
          grid.blocks,
          grid.splits,
          rows};
}

SplitTiles carve_split(Arena& arena, const Problem& p, const PassPlan& pass) {
  const int64_t blocks = split_grid(p, pass).blocks,
                rows = saturated_product(blocks, rows_of(p, pass));
  return {arena.take<Head>(p.heads_q),
          arena.take<SplitBlock>(blocks),
          arena.take<bool>(blocks),
          arena.matrix(rows, p.head_dim),
          arena.matrix(rows, kSplitKeys),
          arena.matrix(few_keys(p.dtype), max_of(p.head_dim, p.head_dim_v)),
          arena.matrix(p.dropout_p > 0 ? 16 : 0, kSplitKeys),
          {{}, arena.matrix(1, p.head_dim_v), arena.take<SoftmaxState>(1)}};
}

void make_blocks(const ForwardJob& job, const Sequence& seq, const SplitGrid& grid,
                 const SplitTiles& tiles) {
  for (int64_t h = 0; h < job.problem.heads_q; ++h)
    new (tiles.heads + h) Head(make_head(job.problem, job.in, seq, h));
  const int64_t end = grid.group * seq.q_slot;
  for (int64_t b = 0; b < grid.blocks; ++b) {
    const int64_t begin = min_of(b % grid.blocks_per_head * kFewQueries, end);
    tiles.blocks[b] = {tiles.heads + b / grid.blocks_per_head * grid.group, grid.group, begin,
                       min_of(begin + kFewQueries, end)};
  }
}

int64_t split_thread_bytes(const Problem& problem, const PassPlan& pass) {
  Arena arena;
  carve_split(arena, problem, pass);
  return arena.bytes();
}

}  // namespace tilewise::cpu
