// The online softmax of a row whose weights become bf16 operands at once, whole or as parts: the
// f32 weights never reach memory.
//
// The polynomial is of degree 4, whose error is a thousandth of what bf16 rounds away and well
// below f16's; weights in three parts take degree 5.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_SOFTMAX_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_SOFTMAX_BF16_INL_H_
#undef TILEWISE_CPU_SIMD_SOFTMAX_BF16_INL_H_
#else
#define TILEWISE_CPU_SIMD_SOFTMAX_BF16_INL_H_
#endif
// clang-format on

#include "cpu/simd/parts-inl.h"
#include "cpu/simd/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

#if TILEWISE_BF16_DOT

// 32 weights as 16 pairs of each part.
template <int kParts>
HWY_INLINE void put_weights(__m512 x, __m512 y, float* out, int64_t part) {
  if constexpr (kParts == 1) {
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(y, x));
  } else {
    for (int p = 0; p < kParts; ++p) {
      const __m512i a = take_part(x), b = take_part(y);
      _mm512_store_si512(out + p * part, pairs_along(a, b));
    }
  }
}

// A row of f32 weights, already made, as operands.
template <int kParts>
HWY_INLINE void convert_weights(const float* s, int64_t cols, float* out, int64_t part) {
  for (int64_t j = 0; j < padded(cols); j += 32)
    put_weights<kParts>(_mm512_load_ps(s + j),
                        j + 16 < padded(cols) ? _mm512_load_ps(s + j + 16) : _mm512_setzero_ps(),
                        out + j / 2, part);
}

// softmax_lanes, with the weights going to `out`, zeros up to a multiple of 32. `out` may be s.
template <int kParts>
HWY_INLINE F32Vec softmax_lanes_to(const Score& score, int64_t cols, const float* s,
                                   const SoftmaxRow& row, float* out, int64_t part) {
  const F32Tag d;
  const float shift = raise_max(score, max_of_lanes(s, cols), row);
  const RowExp2<kParts == 3 ? 5 : 4> weight(shift, score.unit, score.lowest);
  F32Vec even = hn::Zero(d), odd = even;
  int64_t j = 0;
  for (; j + 32 <= padded(cols); j += 32) {
    const F32Vec x = weight(hn::Load(d, s + j)), y = weight(hn::Load(d, s + j + 16));
    even = hn::Add(even, x);
    odd = hn::Add(odd, y);
    put_weights<kParts>(x.raw, y.raw, out + j / 2, part);
  }
  if (j < padded(cols)) {
    const F32Vec x = weight(hn::Load(d, s + j));
    even = hn::Add(even, x);
    put_weights<kParts>(x.raw, _mm512_setzero_ps(), out + j / 2, part);
  }
  return hn::Add(even, odd);
}

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
