// Special functions and conversions, one instruction each.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

// 2^x on the special-function unit (16 a clock and SM); 2 ulp, ex2(-inf) = 0.
TW_DEVICE float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

TW_DEVICE float lg2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

TW_DEVICE float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two float32 rounded to nearest even and packed, `low` in the low half.
template <Element kElement>
TW_DEVICE uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (kElement == Element::kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

TW_DEVICE float bf16_to_f32(uint16_t bits) {
  return __uint_as_float(uint32_t{bits} << 16);
}

TW_DEVICE float f16_to_f32(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

}  // namespace tilewise::ptx
