// Vector exp2 for the softmax. Domain: everything. x below -125 gives 0 (softmax weights there are
// nothing), x of 128 and above +inf, NaN stays NaN. Elsewhere the relative error is at most 2.0e-7
// (tests/test_simd.cpp sweeps it): 2.6e-9 from the polynomial, the rest from rounding.
//
// x = n + f with |f| <= 1/2: 2^x = 2^n * p(f), p of degree 6 with p(0) = 1, minimax for the
// relative error, and 2^n added into the exponent bits. n comes from adding 1.5 * 2^23, which
// leaves it in the low mantissa bits.

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

// What the caller knows of x; saves the upper cap.
enum class Exponent { kAny, kBelow128 };

template <Exponent kKnown = Exponent::kAny, class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, 12582912.0f);
  V capped = x;
  if constexpr (kKnown == Exponent::kAny) {
    const V cap = hn::Set(d, 128.0f);
    capped = hn::IfThenElse(hn::Gt(x, cap), cap, x);  // a NaN passes, as through no Min
  }
  const V shifted = hn::Add(capped, magic);
  const V f = hn::Sub(capped, hn::Sub(shifted, magic));
  V p = hn::MulAdd(hn::Set(d, 1.55946782e-4f), f, hn::Set(d, 1.34066439e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.61769297e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.55031055e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.40226528e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.93147215e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -125.0f)), scaled);
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
