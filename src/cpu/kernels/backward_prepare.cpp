// Before the backward's main loop, for each (query tile, head): delta = rowsum(dO * O) - dLSE, the
// LSE in two parts, the sink's gradient, dQ = 0.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_prepare.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/backward_replay-inl.h"
#include "cpu/kernels/backward_work.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// rowsum(dO * O), summed in the order of the matrix product that yields dP. Where one key takes the
// whole row, O is that key's V, and dP - delta comes out as the 0 that it is.
HWY_INLINE float dot_row(const float* a, const float* b, int64_t cols) {
  const hn::CappedTag<float, 1> d;
  float sum = 0;
  for (int64_t k = 0; k < cols; k += kChainDepth) {
    auto chain = hn::Zero(d);
    for (int64_t j = k; j < min_of(k + kChainDepth, cols); ++j)
      chain = hn::MulAdd(hn::Set(d, a[j]), hn::Set(d, b[j]), chain);
    sum += hn::GetLane(chain);
  }
  return sum;
}

// The f32 LSE of the caller, without losing a digit of what it holds.
HWY_INLINE void split_lse(const Score& score, float lse, RowStats& stats) {
  const double natural = score.natural;
  stats.max = lse == kMinusInf ? -kMinusInf : static_cast<float>(lse / natural);
  stats.log2_sum = std::isfinite(stats.max)
                       ? static_cast<float>((lse - stats.max * natural) * 1.4426950408889634)
                       : 0.0f;
}

struct PrepareHead {
  Rows o, d_o;
  StatRows lse;
  const StatRows* d_lse;  // null: not given
  float k_norm;           // of the longest key that the rows see
  bool other_order;       // the forward added up q . k in another order than the backward does
};

// Rows `q` of one head; returns their part of the sink's gradient.
HWY_INLINE double prepare_rows(const Head& head, const PrepareHead& in, Span q, int64_t tile_kv,
                               PrepareTiles& t, RowStats* stats) {
  pack_rows(in.o, q, t.o);
  pack_rows(in.d_o, q, t.d_o);
  pack_rows(head.q, q, t.q);
  for (int64_t i = q.begin; i < q.end; ++i) {
    RowStats& row = stats[i - q.begin];
    split_lse(head.score, in.lse.at(i), row);
    row.delta = dot_row(t.o.row(i - q.begin), t.d_o.row(i - q.begin), in.o.cols);
    if (in.d_lse) row.delta -= in.d_lse->at(i);
  }
  if (in.other_order || worth_replaying(head, q, in.k_norm, in.lse, t)) {
    replay_rows(head, q, tile_kv, t);
    for (int64_t i = q.begin; i < q.end; ++i)
      adopt(head.score, t.replay[i - q.begin], in.lse.at(i), in.d_lse ? in.d_lse->at(i) : 0.0f,
            stats[i - q.begin]);
  }
  double dsink = 0;
  if (head.score.sink != kMinusInf)
    for (int64_t r = 0; r < q.size(); ++r) {
      const double logit = static_cast<double>(head.score.sink) - stats[r].max;
      const double p = std::exp2(logit * 1.4426950408889634 - stats[r].log2_sum);
      if (p != 0) dsink -= p * stats[r].delta;
    }
  return dsink;
}

// The norms that tell which rows deserve a replay.
inline void measure_keys(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory) {
  const Problem& problem = job.problem;
  const int64_t group = problem.heads_q / problem.heads_kv;
  parallel_for(work.keys.size(), job.pass.threads, [&](int64_t i, int thread) {
    const WorkItem item = work.keys[i];
    const Sequence& seq = work.seqs[item.sequence];
    const Head head = make_head(problem, job.in, seq, item.head * group);
    const Matrix rows = memory.prepare_tiles(thread).rows;
    const int64_t k0 = item.tile * job.pass.tile_kv;
    const Span k = {k0, min_of(k0 + job.pass.tile_kv, seq.kv_used)};
    pack_rows(head.k, k, rows);
    memory.shared.k_norm[work.keys.place(item)] = max_norm(rows, k.size(), head.k.cols);
  });
}

inline float longest_key(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory, const WorkItem& item, Span keys) {
  const int64_t kv_head = item.head / (job.problem.heads_q / job.problem.heads_kv);
  float most = 0;
  for (int64_t j = keys.begin / job.pass.tile_kv; j * job.pass.tile_kv < keys.end; ++j) {
    const WorkItem tile = {item.sequence, j, kv_head};
    most = max_of(most, memory.shared.k_norm[work.keys.place(tile)]);
  }
  return most;
}

// One query tile of one head: statistics, delta, its part of dsink; dQ's sum begun; dQ written
// where nothing will be added to it.
inline void prepare_tile(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory, const WorkItem& item, int thread) {
  const Problem& problem = job.problem;
  const Sequence& seq = work.seqs[item.sequence];
  const Head head = make_head(problem, job.in, seq, item.head);
  const int64_t q0 = item.tile * job.pass.tile_q, q1 = q0 + job.pass.tile_q;
  const Span slot = {q0, min_of(q1, seq.q_slot)}, used = {q0, min_of(q1, seq.q_used)};
  const int64_t row = stat_index(problem, seq, item.head) + q0, place = work.queries.place(item);
  const Span keys = head.score.mask.keys_of(used);

  memory.shared.turn[place].store(0, std::memory_order_relaxed);
  zero_rows(memory.shared.dq.from_row(row), slot.size(), problem.head_dim);
  zero_output_rows(head_rows(problem, job.grads.dq, seq, Side::kQuery, item.head),
                   {keys.empty() ? q0 : max_of(used.end, q0), slot.end});
  double dsink = 0;
  if (!used.empty()) {
    const StatRows d_lse = stat_rows(problem, job.grads.d_lse, seq, item.head);
    const PrepareHead in = {head_rows(problem, job.grads.o, seq, Side::kQuery, item.head),
                            head_rows(problem, job.grads.d_o, seq, Side::kQuery, item.head),
                            stat_rows(problem, job.grads.lse, seq, item.head),
                            job.grads.d_lse.given() ? &d_lse : nullptr,
                            longest_key(job, work, memory, item, keys),
                            job.other_order};
    PrepareTiles tiles = memory.prepare_tiles(thread);
    dsink = prepare_rows(head, in, used, job.pass.tile_kv, tiles, memory.shared.stats + row);
  }
  if (problem.sink) memory.shared.dsink[place] = dsink;
}

// The tiles' parts, always in the same order.
inline void store_dsink(const BackwardJob& job, const BackwardWork& work,
                        const BackwardMemory& memory) {
  const int64_t heads = job.problem.heads_q;
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t place = h; place < work.queries.size(); place += heads)
      sum += memory.shared.dsink[place];
    static_cast<float*>(job.grads.dsink.data)[h * job.grads.dsink.strides[0]] =
        static_cast<float>(sum);
  }
}

inline void prepare(const BackwardJob& job) {
  const BackwardMemory memory(job);
  const BackwardWork work(job);
  measure_keys(job, work, memory);
  parallel_for(work.queries.size(), job.pass.threads, [&](int64_t i, int thread) {
    prepare_tile(job, work, memory, work.queries[i], thread);
  });
  if (job.grads.dsink.given()) store_dsink(job, work, memory);
}

}  // namespace HWY_NAMESPACE

template <>
void backward_prepare<HWY_TARGET>(const BackwardJob& job) {
  HWY_NAMESPACE::prepare(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
