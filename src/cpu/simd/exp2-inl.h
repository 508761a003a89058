// Vector exp2 for the softmax. Domain: everything. x below -125 gives 0 (softmax weights there are
// nothing), x of 128 and above +inf, NaN stays NaN. Elsewhere the relative error is at most 2.0e-7
// (tests/test_simd.cpp sweeps it): 9.2e-8 from the polynomial, the rest from rounding.
//
// x = n + f with |f| <= 1/2: 2^x = 2^n * p(f), and 2^n added into the exponent bits. n comes from
// adding 1.5 * 2^23, which leaves it in the low mantissa bits.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)  // include guard per target
#ifdef TILEWISE_CPU_SIMD_EXP2_INL_H_
#undef TILEWISE_CPU_SIMD_EXP2_INL_H_
#else
#define TILEWISE_CPU_SIMD_EXP2_INL_H_
#endif
// clang-format on

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^f for |f| <= 1/2, minimax for the relative error with p(0) = 1.
template <int kDegree, class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_fraction(D d, V f) {
  static_assert(kDegree == 4 || kDegree == 5);
  // Errors of 2.9e-6 and 9.2e-8.
  constexpr float k4[] = {9.58286226e-3f, 5.59064634e-2f, 2.40240991e-1f, 6.93124175e-1f, 1.0f};
  constexpr float k5[] = {1.32647272e-3f, 9.67151269e-3f, 5.55073374e-2f,
                          2.40222421e-1f, 6.93146978e-1f, 1.0f};
  const float* const c = kDegree == 4 ? k4 : k5;
  V p = hn::Set(d, c[0]);
  for (int i = 1; i <= kDegree; ++i) p = hn::MulAdd(p, f, hn::Set(d, c[i]));
  return p;
}

// 2^n p, n in the low bits of `shifted`; 0 where x < lowest.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V scale_by_exp2(D d, V p, V shifted, V x, V lowest) {
#if HWY_TARGET == HWY_AVX3  // the compiler doesn't find that the addition can mask
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.raw), 23);
  const __mmask16 counts = _mm512_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ);
  return V{
      _mm512_castsi512_ps(_mm512_maskz_add_epi32(counts, _mm512_castps_si512(p.raw), exponent))};
#else
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), scaled);
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const V magic = hn::Set(d, 12582912.0f), cap = hn::Set(d, 128.0f);
  const V capped = hn::IfThenElse(hn::Gt(x, cap), cap, x);  // a NaN passes, as through no Min
  const V shifted = hn::Add(capped, magic);
  const V f = hn::Sub(capped, hn::Sub(shifted, magic));
  return scale_by_exp2(d, exp2_fraction<5>(d, f), shifted, x, hn::Set(d, -125.0f));
}

// exp2((s - shift) * unit) for the scores of a row, which are below 2^128 then. With t = s - shift,
// n = round(t unit) and f = t unit - n are an FMA each.
template <int kDegree>
class RowExp2 {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  // `lowest`: -125 / unit.
  RowExp2(float shift, float unit, float lowest)
      : shift_(hn::Set(D(), shift)), unit_(hn::Set(D(), unit)), lowest_(hn::Set(D(), lowest)) {}

  HWY_INLINE V operator()(V s) const {
    const D d;
    const V magic = hn::Set(d, 12582912.0f);
    const V t = hn::Sub(s, shift_);
    const V shifted = hn::MulAdd(t, unit_, magic);
    const V f = hn::MulSub(t, unit_, hn::Sub(shifted, magic));
    return scale_by_exp2(d, exp2_fraction<kDegree>(d, f), shifted, t, lowest_);
  }

 private:
  V shift_, unit_, lowest_;
};

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
