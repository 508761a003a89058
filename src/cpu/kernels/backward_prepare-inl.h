// Before the backward's main loop, for each (query tile, head): delta = rowsum(dO * O) - dLSE, the
// LSE in two parts, the sink's gradient, dQ = 0.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_KERNELS_PREPARE_INL_H_
#undef TILEWISE_CPU_KERNELS_PREPARE_INL_H_
#else
#define TILEWISE_CPU_KERNELS_PREPARE_INL_H_
#endif
// clang-format on

#include "cpu/job.h"
#include "cpu/kernels/backward_replay-inl.h"
#include "cpu/kernels/backward_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
