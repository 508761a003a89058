// The backward's common step: one query tile meets one key tile.
//
//   S = Q K^T,  P = exp2(unit (S - max) - rest)   recomputed, as the forward had it
//   dP = drop(dO V^T),     dS = P * (dP - delta)  with delta = rowsum(dO * O) - dLSE

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_SCORE_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_KERNELS_SCORE_GRAD_INL_H_
#undef TILEWISE_CPU_KERNELS_SCORE_GRAD_INL_H_
#else
#define TILEWISE_CPU_KERNELS_SCORE_GRAD_INL_H_
#endif
// clang-format on

#include "cpu/kernels/attend-inl.h"
#include "cpu/kernels/backward_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// s -> P, dp -> dS. Where P is 0 so is dS, whatever dP holds: a masked key's V or another row's dO
// may be inf or NaN.
HWY_INLINE void softmax_grad_row(float unit, const RowStats& stats, int64_t cols, float* s,
                                 float* dp) {
  const F32Tag d;
  const F32Vec u = hn::Set(d, unit), top = hn::Set(d, stats.max);
  const F32Vec rest = hn::Set(d, stats.log2_sum);
  const F32Vec delta = hn::Set(d, stats.delta);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d)) {
    const F32Vec p = exp2(d, hn::MulSub(u, hn::Sub(hn::Load(d, s + j), top), rest));
    const F32Vec ds = hn::Mul(p, hn::Sub(hn::Load(d, dp + j), delta));
    hn::Store(p, d, s + j);
    hn::Store(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), ds), d, dp + j);
  }
}

// K, K^T and V^T of a key tile; V's rows pass through `dv`.
template <class Operands = F32Operands>
HWY_INLINE void load_keys_for_grad(const Head& head, Span k, const BackwardTiles& t) {
  Operands::columns(head.k, k, t.k, t.kt);
  Operands::values(head.k, k, t.k);
  Operands::columns(head.v, k, t.dv, t.vt);
}

template <class Operands = F32Operands>
HWY_INLINE void load_queries_for_grad(const Head& head, const Rows& d_o, Span q, BackwardTiles& t) {
  Operands::rows(head.q, q, t.q);
  Operands::rows(d_o, q, t.d_o);
  t.q_values = Operands::values_of(head.q, q, t.q, t.q_values);
  t.do_values = Operands::values_of(d_o, q, t.d_o, t.do_values);
}

// The tiles as seen from column `c0` of the key tile.
template <class Operands>
HWY_INLINE BackwardTiles from_key(BackwardTiles t, int64_t c0) {
  t.kt = t.kt.from_col(c0);
  t.vt = t.vt.from_col(c0);
  t.k = Operands::values_from(t.k, c0);
  t.dk = t.dk.from_row(c0);
  t.dv = t.dv.from_row(c0);
  return t;
}

// Leaves drop(P) in t.p and dS (with respect to the logit, after softcap) in t.ds.
template <class Operands = F32Operands>
HWY_INLINE void score_grad(const Head& head, const Panel& at, const RowStats* stats,
                           const BackwardTiles& t) {
  const int64_t rows = at.q.size(), cols = at.k.size();
  const bool dropout = head.score.dropout.threshold != 0;
  Operands::multiply(left(t.q), right(t.kt), t.p, {rows, padded(cols), head.q.cols}, Store::kSet);
  Operands::multiply(left(t.d_o), right(t.vt), t.ds, {rows, padded(cols), head.v.cols},
                     Store::kSet);
  if (dropout) dropout_tile(head.score, at.q, at.k, t.z);
  for (int64_t r = 0; r < rows; ++r) {
    float* cap_slope = head.score.softcap != 0 ? t.cap_slope.row(r) : nullptr;
    score_row(head.score, at.q.begin + r, at.k, at.tile, t.p.row(r), cap_slope);
    if (dropout) multiply_row(t.z.row(r), cols, t.ds.row(r));
    softmax_grad_row(head.score.unit, stats[r], cols, t.p.row(r), t.ds.row(r));
    if (dropout) multiply_row(t.z.row(r), cols, t.p.row(r));
  }
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
