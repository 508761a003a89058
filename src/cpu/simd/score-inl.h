// From raw products to probabilities, a row at a time: score function, mask, online softmax,
// dropout. The exponential is a bare exp2: the change of base is part of Score::unit.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)  // include guard per target
#ifdef TILEWISE_CPU_SIMD_SCORE_INL_H_
#undef TILEWISE_CPU_SIMD_SCORE_INL_H_
#else
#define TILEWISE_CPU_SIMD_SCORE_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>

#include "core/softmax_state.h"
#include "cpu/head.h"
#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/lane_sums-inl.h"
#include "cpu/simd/pack-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// s = c tanh(s / c); `slope`, if given, receives ds'/ds = 1 - tanh^2.
HWY_INLINE void softcap_row(float cap, int64_t cols, float* s, float* slope) {
  const F32Tag d;
  const F32Vec c = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap), one = hn::Set(d, 1.0f);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d)) {
    const F32Vec t = hn::Tanh(d, hn::Mul(hn::Load(d, s + j), inverse));
    hn::Store(hn::Mul(c, t), d, s + j);
    if (slope) hn::Store(hn::NegMulAdd(t, t, one), d, slope + j);
  }
}

// s -= slope * |distance - j|, distance = i + off - first key.
HWY_INLINE void alibi_row(float slope, float distance, int64_t cols, float* s) {
  const F32Tag d;
  const F32Vec m = hn::Set(d, slope);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d)) {
    const F32Vec gap = hn::Sub(hn::Set(d, distance), hn::Iota(d, static_cast<float>(j)));
    hn::Store(hn::NegMulAdd(m, hn::Abs(gap), hn::Load(d, s + j)), d, s + j);
  }
}

template <DType kType>
HWY_INLINE void bias_row(const void* bias, int64_t kv_stride, int64_t cols, float* s) {
  const F32Tag d;
  const int64_t lanes = hn::Lanes(d);
  int64_t j = 0;
  if (kv_stride == 0) {
    const F32Vec b = hn::Set(d, load_f32_scalar<kType>(bias, 0));
    for (; j < padded(cols); j += lanes) hn::Store(hn::Add(hn::Load(d, s + j), b), d, s + j);
    return;
  }
  for (; j + lanes <= cols; j += lanes)
    hn::Store(hn::Add(hn::Load(d, s + j), load_f32<kType>(bias, j)), d, s + j);
  for (; j < cols; ++j) s[j] += load_f32_scalar<kType>(bias, j);
}

// One number of the bias.
inline float bias_at(const BiasRows& bias, int64_t q, int64_t k) {
  float value = 0;
  with_dtype(bias.dtype, [&](auto type) {
    value = load_f32_scalar<decltype(type)::value>(bias.row(q), k * bias.kv_stride);
  });
  return value;
}

HWY_INLINE void scale_row(float factor, int64_t cols, float* s) {
  const F32Tag d;
  const F32Vec f = hn::Set(d, factor);
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, s + j), f), d, s + j);
}

// Turns the products s[0 ... k.size()) of query q and keys k into logits (times 1 / natural); -inf
// where q doesn't see the key and in the padding. A full tile runs no mask code. `cap_slope` as in
// softcap_row.
HWY_INLINE void score_row(const Score& score, int64_t q, Span k, TileClass c, float* s,
                          float* cap_slope) {
  const int64_t cols = k.size();
  if (!score.plain) {
    scale_row(score.scale, cols, s);
    if (score.softcap != 0) softcap_row(score.softcap, cols, s, cap_slope);
    if (score.slope != 0)
      alibi_row(score.slope, static_cast<float>(q + score.off - k.begin), cols, s);
    if (score.bias.base)
      with_dtype(score.bias.dtype, [&](auto type) {
        const int64_t first = k.begin * score.bias.kv_stride * size_of(score.bias.dtype);
        bias_row<decltype(type)::value>(static_cast<std::byte*>(score.bias.row(q)) + first,
                                        score.bias.kv_stride, cols, s);
      });
  }
  Span seen = {0, cols};
  if (c == TileClass::kPartial) {
    const Span row = score.mask.row(q);
    seen.begin = std::clamp<int64_t>(row.begin - k.begin, 0, cols);
    seen.end = std::clamp<int64_t>(row.end - k.begin, seen.begin, cols);
  }
  std::fill(s, s + seen.begin, kMinusInf);
  std::fill(s + seen.end, s + padded(cols), kMinusInf);
}

// The largest of the scores that fall to each lane.
HWY_INLINE F32Vec max_of_lanes(const float* s, int64_t cols) {
  const F32Tag d;
  const int64_t lanes = hn::Lanes(d);
  F32Vec even = hn::Set(d, kMinusInf), odd = even;  // two chains: one would wait for each Max
  int64_t j = 0;
  for (; j + 2 * lanes <= padded(cols); j += 2 * lanes) {
    even = hn::Max(even, hn::Load(d, s + j));
    odd = hn::Max(odd, hn::Load(d, s + j + lanes));
  }
  if (j < padded(cols)) even = hn::Max(even, hn::Load(d, s + j));
  return hn::Max(even, odd);
}

// s = exp2((s - shift) * unit); returns the sum of each lane. -inf gives 0.
HWY_INLINE F32Vec exp2_row(const Score& score, float shift, int64_t cols, float* s) {
  const F32Tag d;
  const int64_t lanes = hn::Lanes(d);
  const RowExp2<5> weight(shift, score.unit, score.lowest);
  F32Vec even = hn::Zero(d), odd = even;
  int64_t j = 0;
  for (; j + 2 * lanes <= padded(cols); j += 2 * lanes) {
    const F32Vec x = weight(hn::Load(d, s + j)), y = weight(hn::Load(d, s + j + lanes));
    hn::Store(x, d, s + j);
    hn::Store(y, d, s + j + lanes);
    even = hn::Add(even, x);
    odd = hn::Add(odd, y);
  }
  if (j < padded(cols)) {
    const F32Vec x = weight(hn::Load(d, s + j));
    hn::Store(x, d, s + j);
    even = hn::Add(even, x);
  }
  return hn::Add(even, odd);
}

// One step of the online softmax: logits become weights relative to the row's new maximum, and what
// the row has gathered so far (sum and output) is brought to that maximum.
struct SoftmaxRow {
  SoftmaxState& state;
  Matrix o;  // one row; its columns `dv`, 0 for none
  int64_t dv;
};
// Takes in the maxima of new logits; returns what to subtract from them. A maximum that grows by
// little is left where it is: weights may as well be up to 2^8. So rows are rescaled hardly ever
// after their first keys, the branch is foreseen, and nobody waits for the lanes' maximum; taken
// for a third of the rows, as it would be, it costs more than the exponentials of a row.
HWY_INLINE float raise_max(const Score& score, F32Vec lanes, const SoftmaxRow& row) {
  const F32Tag d;
  SoftmaxState& state = row.state;
  if (!hn::AllFalse(d, hn::Gt(lanes, hn::Set(d, state.max + score.slack)))) {
    const float new_max = hn::GetLane(hn::MaxOfLanes(d, lanes));
    const float alpha = std::exp2((state.max - softmax_shift(new_max)) * score.unit);
    state.sum *= alpha;
    scale_row(alpha, row.dv, row.o.data);
    state.max = new_max;
  }
  return softmax_shift(state.max);
}
// Returns what the sum grows by, lane by lane.
HWY_INLINE F32Vec softmax_lanes(const Score& score, int64_t cols, float* s, const SoftmaxRow& row) {
  return exp2_row(score, raise_max(score, max_of_lanes(s, cols), row), cols, s);
}
HWY_INLINE void softmax_step(const Score& score, int64_t cols, float* s, const SoftmaxRow& row) {
  row.state.sum += hn::GetLane(hn::SumOfLanes(F32Tag(), softmax_lanes(score, cols, s, row)));
}

// Adds to each row's sum what softmax_lanes gave, which lies in `lane_sums` row by row, in whole
// groups of 16 rows: reduced together, they cost a third of what they do one by one.
HWY_INLINE void add_lane_sums(const float* lane_sums, int64_t rows, SoftmaxState* state) {
  const F32Tag d;
  for (int64_t first = 0; first < rows; first += 16) {
    F32Vec v[4][4];
    for (int64_t r = 0; r < 16; ++r)
      v[r / 4][r % 4] = hn::Load(d, lane_sums + (first + r) * hn::Lanes(d));
    float sums[16];
    sum_lanes(v, sums, 4);
    for (int64_t r = 0; r < min_of<int64_t>(16, rows - first); ++r) state[first + r].sum += sums[r];
  }
}

// z(r, c) = 1 / (1 - p) for kept elements, 0 for dropped ones; q and k start on multiples of 16.
HWY_INLINE void dropout_tile(const Score& score, Span q, Span k, Matrix z) {
  for (int64_t i = 0; i < q.size(); i += 16)
    for (int64_t j = 0; j < k.size(); j += 16) {
      const auto row_block = static_cast<uint32_t>((q.begin + i) / 16);
      const auto col_block = static_cast<uint32_t>((k.begin + j) / 16);
      Philox4 calls[32];
      for (uint32_t lane = 0; lane < 32; ++lane)
        calls[lane] =
            dropout_block(score.dropout.key, score.batch, score.head, row_block, col_block, lane);
      const int64_t rows = min_of<int64_t>(16, q.size() - i);
      for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t c = 0; c < 16; ++c) {
          const uint32_t bits = dropout_bits(calls[(r % 8) * 4 + (c % 8) / 2], r, c);
          z.row(i + r)[j + c] = bits >= score.dropout.threshold ? score.keep_scale : 0.0f;
        }
    }
}

HWY_INLINE void multiply_row(const float* factors, int64_t cols, float* s) {
  const F32Tag d;
  for (int64_t j = 0; j < padded(cols); j += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, s + j), hn::Load(d, factors + j)), d, s + j);
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
