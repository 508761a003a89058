// dBias: dS summed over the dimensions in which the bias is broadcast. A pass of its own, run only
// when asked: dS is recomputed (2 of the backward's 5 products), and every number of dBias belongs
// to one item, so the sum has one order and no tile of dS is ever stored. Items: (bias batch, bias
// head, query tile), or all query tiles at once where the query dimension is broadcast.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_bias.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/backward_main-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void add_row(const float* in, int64_t cols, float* out) {
  for (int64_t j = 0; j < cols; ++j) out[j] += in[j];
}

HWY_INLINE float sum_row(const float* in, int64_t cols) {
  const F32Tag d;
  F32Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d)) sum = hn::Add(sum, hn::Load(d, in + j));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Adds the tile dS in t.ds to this (batch, head)'s dBias. `total` gathers what goes to the one
// number of a bias that is broadcast over queries and keys.
HWY_INLINE void add_bias_grad(const Bias& bias, const Panel& at, const BackwardTiles& t,
                              const BiasRows& dbias, double& total) {
  const int64_t cols = at.k.size();
  if (bias.broadcast_q)
    for (int64_t r = 1; r < at.q.size(); ++r) add_row(t.ds.row(r), padded(cols), t.ds.row(0));
  const int64_t rows = bias.broadcast_q ? 1 : at.q.size();
  for (int64_t r = 0; r < rows; ++r) {
    float* out = static_cast<float*>(dbias.row(at.q.begin + r));
    if (!bias.broadcast_kv)
      add_row(t.ds.row(r), cols, out + at.k.begin);
    else if (!bias.broadcast_q)
      *out += sum_row(t.ds.row(r), cols);
    else
      total += sum_row(t.ds.row(r), cols);
  }
}

// One (sequence, head) pair's part, over `rows` of its queries.
inline void bias_grad(const BackwardJob& job, const Head& head, Span rows,
                      const BackwardMemory& memory, BackwardTiles t, double& total) {
  const Problem& problem = job.problem;
  const BiasRows dbias = bias_rows(job.grads.dbias, head.seq.batch, head.head);
  const Rows d_o = head_rows(problem, job.grads.d_o, head.seq, Side::kQuery, head.head);
  const TileGrid grid = {head.score.mask, job.pass.tile_q, job.pass.tile_kv};
  const RowStats* stats = memory.shared.stats + stat_index(problem, head.seq, head.head);
  rows.end = min_of(rows.end, head.seq.q_used);
  for (int64_t q0 = rows.begin; q0 < rows.end; q0 += job.pass.tile_q) {
    const Span q = {q0, min_of(q0 + job.pass.tile_q, rows.end)};
    load_queries_for_grad(head, d_o, q, t);
    for_visible_kv(grid, q, [&](Span k, TileClass c) {
      load_keys_for_grad(head, k, t);
      score_grad(head, {q, k, c}, stats + q0, t);
      add_bias_grad(problem.bias, {q, k, c}, t, dbias, total);
    });
  }
}

}  // namespace HWY_NAMESPACE

template <>
void backward_bias<HWY_TARGET>(const BackwardJob& job) {
  const Problem& problem = job.problem;
  const Bias& bias = problem.bias;
  const Tensor& out = job.grads.dbias;
  HWY_NAMESPACE::zero_tensor(out);
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const BackwardMemory memory(job);
  const int64_t q_tiles = bias.broadcast_q ? 1 : ceil_div(problem.seq_q, job.pass.tile_q);
  parallel_for(out.shape[0] * out.shape[1] * q_tiles, job.pass.threads, [&](int64_t i, int thread) {
    const int64_t q0 = i % q_tiles * job.pass.tile_q, head = i / q_tiles % out.shape[1];
    const int64_t batch = i / q_tiles / out.shape[1];
    const Span rows = {q0, bias.broadcast_q ? problem.seq_q : q0 + job.pass.tile_q};
    const Span batches = bias.broadcast_batch ? Span{0, problem.batch} : Span{batch, batch + 1};
    const Span heads = bias.broadcast_heads ? Span{0, problem.heads_q} : Span{head, head + 1};
    const BackwardTiles tiles = memory.tiles(thread);
    double total = 0;
    for (int64_t b = batches.begin; b < batches.end; ++b)
      for (int64_t h = heads.begin; h < heads.end; ++h)
        HWY_NAMESPACE::bias_grad(job, make_head(problem, job.in, seqs[b], h), rows, memory, tiles,
                                 total);
    if (bias.broadcast_q && bias.broadcast_kv)
      *static_cast<float*>(bias_rows(out, batch, head).row(0)) = static_cast<float>(total);
  });
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
