// The online softmax of a row whose weights become bf16 operands at once, whole or as parts: the
// f32 weights never reach memory.
//
// exp2((s - m) u) as in exp2-inl.h, but the factor u is part of two FMAs: with t = s - m,
// n = round(t u) and f = t u - n are one instruction each. 11 instructions for 16 numbers at degree
// 4, whose error of 2.9e-6 is a thousandth of what bf16 rounds away and well below f16's; weights
// in three parts take degree 6, 2.6e-9.

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

// exp2((s - shift) * unit), which is below 2^128; results below 2^-125 are 0, NaN stays NaN.
template <int kDegree>
struct RowExp2 {
  RowExp2(float row_shift, float row_unit)
      : shift(_mm512_set1_ps(row_shift)),
        unit(_mm512_set1_ps(row_unit)),
        lowest(_mm512_set1_ps(-125.0f / row_unit)) {}

  HWY_INLINE __m512 operator()(__m512 s) const {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    const __m512 t = _mm512_sub_ps(s, shift);
    const __m512 shifted = _mm512_fmadd_ps(t, unit, magic);
    const __m512 f = _mm512_fmsub_ps(t, unit, _mm512_sub_ps(shifted, magic));
    const __m512i p = _mm512_castps_si512(polynomial(f));
    const __mmask16 counts = _mm512_cmp_ps_mask(t, lowest, _CMP_NLT_UQ);
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(counts, p, exponent));
  }

 private:
  // Minimax for the relative error with p(0) = 1.
  static HWY_INLINE __m512 polynomial(__m512 f) {
    constexpr float k4[] = {9.58286226e-3f, 5.59064634e-2f, 2.40240991e-1f, 6.93124175e-1f};
    constexpr float k6[] = {1.55946782e-4f, 1.34066439e-3f, 9.61769297e-3f,
                            5.55031055e-2f, 2.40226528e-1f, 6.93147215e-1f};
    static_assert(kDegree == 4 || kDegree == 6);
    const float* const c = kDegree == 4 ? k4 : k6;
    __m512 p = _mm512_set1_ps(c[0]);
    for (int i = 1; i < kDegree; ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c[i]));
    return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  }
  __m512 shift, unit, lowest;
};

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

// softmax_step, with the weights going to `out`, zeros up to a multiple of 32. `out` may be s.
template <int kParts>
HWY_INLINE void softmax_step_to(const Score& score, int64_t cols, const float* s,
                                const SoftmaxRow& row, float* out, int64_t part) {
  const float shift = raise_max(score, max_of_lanes(s, cols), row);
  const RowExp2<kParts == 3 ? 6 : 4> weight(shift, score.unit);
  __m512 sum = _mm512_setzero_ps(), sum2 = _mm512_setzero_ps();
  int64_t j = 0;
  for (; j + 32 <= padded(cols); j += 32) {
    const __m512 x = weight(_mm512_load_ps(s + j)), y = weight(_mm512_load_ps(s + j + 16));
    sum = _mm512_add_ps(sum, x);
    sum2 = _mm512_add_ps(sum2, y);
    put_weights<kParts>(x, y, out + j / 2, part);
  }
  if (j < padded(cols)) {
    const __m512 x = weight(_mm512_load_ps(s + j));
    sum = _mm512_add_ps(sum, x);
    put_weights<kParts>(x, _mm512_setzero_ps(), out + j / 2, part);
  }
  row.state.sum += _mm512_reduce_add_ps(_mm512_add_ps(sum, sum2));
}

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
