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
#include "cpu/kernels/backward_scratch.h"
#include "cpu/kernels/score_grad-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float dot_row(const float* a, const float* b, int64_t cols) {
  const F32Tag d;
  F32Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d))
    sum = hn::MulAdd(hn::Load(d, a + j), hn::Load(d, b + j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The f32 LSE of the caller, in log2 units, without losing a digit of what it holds.
HWY_INLINE void split_lse(float lse, RowStats& stats) {
  const double lse2 = static_cast<double>(lse) * 1.4426950408889634;
  stats.max2 = lse == kMinusInf ? -kMinusInf : static_cast<float>(lse2);
  stats.log2_sum =
      std::isfinite(stats.max2) ? static_cast<float>(lse2 - static_cast<double>(stats.max2)) : 0;
}

// An f32 LSE is good to half a unit in its last place, and P inherits that as a relative error. Where
// it is more than the dtype forgives, the row's maximum and sum are worked out again, as the forward
// did. They are taken only where they agree with the LSE to its last places: a caller may hand in the
// LSE of a softmax over more keys than these (ring attention).
HWY_INLINE void refine_stats(const Head& head, Span q, int64_t tile_kv, const StatRows& lse,
                             PrepareTiles& t, RowStats* stats) {
  const float trusted = head.q.dtype == DType::kF32 ? 32.0f : 1024.0f;
  bool coarse = false;
  for (int64_t i = q.begin; i < q.end; ++i)
    coarse |= std::isfinite(lse.at(i)) && std::abs(lse.at(i)) > trusted;
  if (!coarse) return;

  begin_queries(head, q, t.query);
  const TileGrid grid = {head.score.mask, q.size(), tile_kv};
  for_visible_kv(grid, q, [&](Span k, TileClass c) {
    load_k_transposed(head, k, t.key.v, t.key.kt);
    for (int64_t q0 = q.begin; q0 < q.end; q0 += kPanel) {
      const Span panel = {q0, min_of(q0 + kPanel, q.end)};
      const QueryTile rows = t.query.from_row(q0 - q.begin);
      gemm(left(rows.q), right(t.key.kt), t.panel.s,
           {panel.size(), padded(k.size()), head.q.cols}, Store::kSet);
      for (int64_t r = 0; r < panel.size(); ++r) {
        score_row(head.score, q0 + r, k, c, t.panel.s.row(r), nullptr);
        softmax_step(rows.state[r], k.size(), t.panel.s.row(r), nullptr, 0);
      }
    }
  });
  for (int64_t i = q.begin; i < q.end; ++i) {
    const SoftmaxState state = t.query.state[i - q.begin];
    const float given = lse.at(i);
    if (!(std::abs(log_sum_exp(state) - given) <= 5e-7f * std::abs(given))) continue;
    stats[i - q.begin].max2 = state.max2;
    stats[i - q.begin].log2_sum = static_cast<float>(std::log2(static_cast<double>(state.sum)));
  }
}

struct PrepareHead {
  Rows o, d_o;
  StatRows lse;
  const StatRows* d_lse;  // null: not given
};

// Rows `q` of one head; returns their part of the sink's gradient.
HWY_INLINE double prepare_rows(const Head& head, const PrepareHead& in, Span q, int64_t tile_kv,
                               PrepareTiles& t, RowStats* stats) {
  pack_rows(in.o, q, 1.0f, t.o);
  pack_rows(in.d_o, q, 1.0f, t.d_o);
  for (int64_t i = q.begin; i < q.end; ++i) {
    RowStats& row = stats[i - q.begin];
    split_lse(in.lse.at(i), row);
    row.delta = dot_row(t.o.row(i - q.begin), t.d_o.row(i - q.begin), in.o.cols);
    if (in.d_lse) row.delta -= in.d_lse->at(i);
  }
  refine_stats(head, q, tile_kv, in.lse, t, stats);
  double dsink = 0;
  if (head.score.sink)
    for (int64_t r = 0; r < q.size(); ++r) {
      const double p = std::exp2(static_cast<double>(head.score.sink2) - stats[r].max2 -
                                 stats[r].log2_sum);
      if (p != 0) dsink -= p * stats[r].delta;
    }
  return dsink;
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
