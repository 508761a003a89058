// split: Flash-Decoding (Dao, Haziza, Massa, Sizov 2023), for few queries and many keys. The keys
// are cut into splits of a size that follows from the problem alone; (sequence, split) is a work
// item, for all heads: the query heads of a kv head share one reading of it. A second pass merges
// the splits' partial rows, in their order: nothing depends on the threads.
//
// Bound by reading K and V, which are taken as they lie in memory (simd/few_rows-inl.h).
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_split.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/attend-inl.h"
#include "cpu/kernels/split.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"
#include "cpu/simd/few_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Rows that are whole vectors are read where they lie; others are packed first.
HWY_INLINE Rows readable(const Rows& rows, Span at, Matrix packed) {
  if (whole_vectors(rows.cols))
    return {static_cast<std::byte*>(rows.row(at.begin)), rows.dtype, rows.stride, rows.cols};
  pack_rows(rows, at, packed);
  return {reinterpret_cast<std::byte*>(packed.data), DType::kF32, packed.stride, padded(rows.cols)};
}

// One split of one sequence: a tile of keys goes through all blocks of queries at a time, a few
// keys of every head after another, since heads lie side by side in memory.
struct SplitPass {
  const SplitGrid& grid;
  const SplitTiles& tiles;
  const SplitPartials& partials;
  SplitPlace place;  // of the split
  const int64_t dv;

  const SplitBlock& block(int64_t b) const { return tiles.blocks[b]; }
  QueryTile partial(int64_t b) const { return partials.at({place.sequence, b, place.split, 0}); }
  Matrix q(int64_t b) const { return tiles.q.from_row(b * partials.rows); }
  Matrix s(int64_t b) const { return tiles.s.from_row(b * partials.rows); }

  void begin(int64_t b) {
    const SplitBlock& queries = block(b);
    for (int64_t r = 0; r < queries.count(); ++r) {
      const int64_t i = queries.query(r);
      pack_rows(queries.head(r).q, {i, i + 1}, q(b).from_row(r));
      partial(b).state[r] = {kMinusInf, 0.0f};  // the sink joins once, in the merge
    }
    zero_rows(partial(b).o, queries.count(), dv);
  }

  void scores(int64_t b, Span tile, Span few) {
    const SplitBlock& queries = block(b);
    few_scores(q(b), queries.count(), readable(queries.heads->k, few, tiles.packed),
               {0, few.size()}, s(b).from_col(few.begin - tile.begin));
  }

  void weights(int64_t b, Span k) {
    const SplitBlock& queries = block(b);
    tiles.hides[b] = false;
    for (int64_t r = 0; r < queries.count(); ++r) {
      const Score& score = queries.head(r).score;
      const int64_t i = queries.query(r);
      const TileClass c = score.mask.classify({i, i + 1}, k);
      tiles.hides[b] |= c == TileClass::kEmpty || may_hide(score, c);
      float* row = s(b).row(r);
      if (c == TileClass::kEmpty) {
        std::memset(row, 0, sizeof(float) * padded(k.size()));
        continue;
      }
      // Lanes beyond the keys are worked on too, and must hold numbers.
      std::memset(row + k.size(), 0, sizeof(float) * (padded(k.size()) - k.size()));
      score_row(score, i, k, c, row, nullptr);
      softmax_step(score, k.size(), row, {partial(b).state[r], partial(b).o.from_row(r), dv});
      if (score.dropout.threshold == 0) continue;
      const int64_t in_block = i % 16;  // dropout comes in blocks of 16 x 16
      dropout_tile(score, {i - in_block, i + 1}, k, tiles.z);
      multiply_row(tiles.z.row(in_block), k.size(), row);
    }
  }

  void values(int64_t b, Span tile, Span few) {
    const SplitBlock& queries = block(b);
    const Matrix p = s(b).from_col(few.begin - tile.begin);
    if (tiles.hides[b] && !rows_finite(queries.heads->v, few)) {
      for (int64_t r = 0; r < queries.count(); ++r) {
        const int64_t i = queries.query(r);
        gather_values(queries.head(r).score, {{i, i + 1}, few, TileClass::kPartial}, p.from_row(r),
                      queries.heads->v, partial(b).o.from_row(r));
      }
      return;
    }
    const Rows v = readable(queries.heads->v, few, tiles.packed);
    few_values(p, queries.count(), v, {0, few.size()}, partial(b).o);
  }

  void run(Span keys) {
    if (grid.blocks == 0) return;
    const int64_t few = few_keys(block(0).heads->k.dtype);
    for (int64_t b = 0; b < grid.blocks; ++b) begin(b);
    for (int64_t k = keys.begin; k < keys.end; k += kSplitKeys) {
      const Span tile = {k, min_of(k + kSplitKeys, keys.end)};
      for (int64_t j = k; j < tile.end; j += few)
        for (int64_t b = 0; b < grid.blocks; ++b) scores(b, tile, {j, min_of(j + few, tile.end)});
      for (int64_t b = 0; b < grid.blocks; ++b) weights(b, tile);
      for (int64_t j = k; j < tile.end; j += few)
        for (int64_t b = 0; b < grid.blocks; ++b) values(b, tile, {j, min_of(j + few, tile.end)});
    }
  }
};

// One query's splits become its output, which is gathered in `o`.
HWY_INLINE void merge_splits(const Head& head, const SplitPartials& partials, SplitPlace at,
                             const QueryTile& whole) {
  begin_running(head, 1, whole);
  const int64_t dv = head.v.cols;
  SoftmaxState& state = *whole.state;
  for (at.split = 0; at.split < partials.splits; ++at.split)
    state.max = max_of(state.max, partials.at(at).state->max);
  const float shift = softmax_shift(state.max);
  if (head.score.sink != kMinusInf)
    state.sum = std::exp2((head.score.sink - shift) * head.score.unit);
  for (at.split = 0; at.split < partials.splits; ++at.split) {
    const QueryTile part = partials.at(at);
    if (part.state->sum == 0) continue;
    const float weight = std::exp2((part.state->max - shift) * head.score.unit);
    state.sum += weight * part.state->sum;
    const F32Tag d;
    for (int64_t c = 0; c < padded(dv); c += hn::Lanes(d))
      hn::Store(hn::MulAdd(hn::Set(d, weight), hn::Load(d, part.o.data + c),
                           hn::Load(d, whole.o.data + c)),
                d, whole.o.data + c);
  }
}

}  // namespace HWY_NAMESPACE

template <>
void forward_split<HWY_TARGET>(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const SplitGrid grid = split_grid(problem, job.pass);
  Arena shared(job.workspace);
  const SplitPartials partials = carve_partials(shared, problem, job.pass);
  auto* const threads = static_cast<std::byte*>(job.workspace) + shared.bytes();
  const auto tiles_of = [&](int thread) {
    Arena arena(threads + thread * split_thread_bytes(problem, job.pass));
    return carve_split(arena, problem, job.pass);
  };
  parallel_for(problem.batch * grid.splits, job.pass.threads, [&](int64_t i, int thread) {
    const int64_t sequence = i / grid.splits, split = i % grid.splits;
    const SplitTiles tiles = tiles_of(thread);
    make_blocks(job, seqs[sequence], grid, tiles);
    const Span seen = keys_of_all(seqs[sequence], *tiles.heads, grid.keys_of(split));
    HWY_NAMESPACE::SplitPass{grid, tiles, partials, {sequence, 0, split, 0}, problem.head_dim_v}
        .run(seen);
  });
  parallel_for(problem.batch, job.pass.threads, [&](int64_t sequence, int thread) {
    const SplitTiles tiles = tiles_of(thread);
    make_blocks(job, seqs[sequence], grid, tiles);
    for (int64_t b = 0; b < grid.blocks; ++b) {
      const SplitBlock& block = tiles.blocks[b];
      for (int64_t r = 0; r < block.count(); ++r) {
        const Head& head = block.head(r);
        const int64_t q = block.query(r);
        const Rows o = head_rows(problem, job.out.o, head.seq, Side::kQuery, head.head);
        const StatRows lse = stat_rows(problem, job.out.lse, head.seq, head.head);
        const StatRows* const lse_out = job.out.lse.given() ? &lse : nullptr;
        if (q < head.seq.q_used) {
          HWY_NAMESPACE::merge_splits(head, partials, {sequence, b, 0, r}, tiles.whole);
          HWY_NAMESPACE::finish_queries(head.score, {q, q + 1}, tiles.whole, o, lse_out);
        } else {
          HWY_NAMESPACE::finish_unused_row(o, q, lse_out);
        }
      }
    }
  });
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
