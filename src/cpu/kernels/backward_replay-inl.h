// A second look at a row, for the backward's accuracy. The f32 LSE that the forward hands over is
// good to half a unit in its last place, and P = exp(s - LSE) inherits that as a relative error;
// delta = rowsum(dO * O) inherits the rounding of O. With logits of ordinary size neither is felt.
// Where |LSE| or |q| |k| is large they are, and where the forward added up q . k in another order,
// so that its rounding is not the backward's. The row's maximum, sum and delta are then worked out
// again from Q, K, V and dO: 2 products more for that tile. They are taken only where they agree
// with the LSE to its last places: a caller may hand in the LSE of a softmax over more keys than
// these (ring attention).

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_REPLAY_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_KERNELS_REPLAY_INL_H_
#undef TILEWISE_CPU_KERNELS_REPLAY_INL_H_
#else
#define TILEWISE_CPU_KERNELS_REPLAY_INL_H_
#endif
// clang-format on

#include "cpu/kernels/backward_scratch.h"
#include "cpu/kernels/score_grad-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Up to here P is good to 5e-7. The LSE of unit normal logits over 10^6 keys is 14.3.
inline constexpr float kTrustedLse = 16.0f;

// Logits that could be larger than this make for rows that one or two keys take, where dS is what
// is left of large numbers. Unit normal rows reach sqrt(D), 23 at D = 512, and a little more.
inline constexpr float kTrustedLogit = 32.0f;

// The norm of the longest row.
HWY_INLINE float max_norm(Matrix m, int64_t rows, int64_t cols) {
  const F32Tag d;
  float most = 0;
  for (int64_t r = 0; r < rows; ++r) {
    F32Vec sum = hn::Zero(d);
    for (int64_t c = 0; c < padded(cols); c += hn::Lanes(d)) {
      const F32Vec x = hn::Load(d, m.row(r) + c);
      sum = hn::MulAdd(x, x, sum);
    }
    most = max_of(most, hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return std::sqrt(most);
}

// t.q holds the rows' Q; `k_norm` bounds |k| over the keys they see.
HWY_INLINE bool worth_replaying(const Head& head, Span q, float k_norm, const StatRows& lse,
                                const PrepareTiles& t) {
  for (int64_t i = q.begin; i < q.end; ++i)
    if (std::isfinite(lse.at(i)) && std::abs(lse.at(i)) > kTrustedLse) return true;
  const float q_norm = max_norm(t.q, q.size(), head.q.cols);
  return q_norm * k_norm * std::abs(head.score.scale) > kTrustedLogit;
}

// sum_j p_j dp_j over a row; a weight of 0 counts nothing, whatever dp holds.
HWY_INLINE float weighted_sum(const float* p, const float* dp, int64_t cols) {
  const F32Tag d;
  F32Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d)) {
    const F32Vec weight = hn::Load(d, p + j);
    const F32Vec term = hn::Mul(weight, hn::Load(d, dp + j));
    sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), term));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// One panel of rows meets one key tile: the forward's step with dP in V's place, so that what is
// gathered is sum_j drop(P)_j dP_j, unnormalized.
HWY_INLINE void replay_panel(const Head& head, const Panel& at, const PrepareTiles& t,
                             int64_t first_row) {
  const int64_t rows = at.q.size(), cols = at.k.size();
  const bool dropout = head.score.dropout.threshold != 0;
  const Matrix q = t.q.from_row(first_row), d_o = t.d_o.from_row(first_row);
  gemm(left(q), right(t.kt), t.panel.s, {rows, padded(cols), head.q.cols}, Store::kSet);
  gemm(left(d_o), right(t.vt), t.dp, {rows, padded(cols), head.v.cols}, Store::kSet);
  if (dropout) dropout_tile(head.score, at.q, at.k, t.panel.z);
  for (int64_t r = 0; r < rows; ++r) {
    Replay& row = t.replay[first_row + r];
    float* s = t.panel.s.row(r);
    score_row(head.score, at.q.begin + r, at.k, at.tile, s, nullptr);
    HWY_ALIGN float gathered[kPad] = {row.weighted_dp};  // rescaled as a row of O would be
    softmax_step(head.score, cols, s, {row.state, {gathered, kPad}, 1});
    if (dropout) multiply_row(t.panel.z.row(r), cols, s);
    row.weighted_dp = gathered[0] + weighted_sum(s, t.dp.row(r), cols);
  }
}

// Rows `q`; t.q and t.d_o hold their Q and dO.
HWY_INLINE void replay_rows(const Head& head, Span q, int64_t tile_kv, const PrepareTiles& t) {
  std::fill(t.replay, t.replay + q.size(), Replay{nothing_seen(head), 0.0f});
  const TileGrid grid = {head.score.mask, q.size(), tile_kv};
  for_visible_kv(grid, q, [&](Span k, TileClass c) {
    load_k_transposed(head, k, t.rows, t.kt);
    pack_rows(head.v, k, t.rows);
    transpose(t.rows, k.size(), head.v.cols, t.vt);
    for (int64_t q0 = q.begin; q0 < q.end; q0 += kPanel)
      replay_panel(head, {{q0, min_of(q0 + kPanel, q.end)}, k, c}, t, q0 - q.begin);
  });
}

HWY_INLINE void adopt(const Score& score, const Replay& replay, float lse, float d_lse,
                      RowStats& stats) {
  // Sixteen units in the last place: forwards add up q . k in different orders.
  constexpr float kSame = 2e-6f;
  if (!(std::abs(log_sum_exp(score, replay.state) - lse) <= kSame * max_of(1.0f, std::abs(lse))))
    return;
  stats.max = replay.state.max;
  stats.log2_sum = static_cast<float>(std::log2(static_cast<double>(replay.state.sum)));
  stats.delta = replay.weighted_dp / replay.state.sum - d_lse;
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
