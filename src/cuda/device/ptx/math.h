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

// Relative error 2^-11.
TW_DEVICE float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Byte i of the result is the byte of `a` that nibble i of `selector` names, 0 to 3; with the
// nibble's top bit set, that byte's top bit eight times.
TW_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t selector) {
  uint32_t b;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(b) : "r"(a), "r"(selector));
  return b;
}

// The smaller of the low halves and of the high halves, as unsigned numbers.
TW_DEVICE uint32_t min_halves(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("min.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
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

// The lowest `count` bits; all of them from 32 on. count >= 0.
TW_DEVICE uint32_t low_bits(int count) {
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(count));
  return bits;
}

TW_DEVICE float bf16_to_f32(uint16_t bits) {
  return __uint_as_float(uint32_t{bits} << 16);
}

TW_DEVICE float f16_to_f32(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// x * 2^n, n in the low bits of n_bits. Not in C++: with integers moved to floats there, ptxas
// takes scores for registers that WGMMA may not have while it runs, and serializes all products.
TW_DEVICE float add_exponent(float x, float n_bits) {
  float out;
  asm("{\n.reg .b32 a, n;\n"
      "mov.b32 a, %1;\n"
      "mov.b32 n, %2;\n"
      "mad.lo.u32 a, n, 0x800000, a;\n"
      "mov.b32 %0, a;\n}"
      : "=f"(out)
      : "f"(x), "f"(n_bits));
  return out;
}

}  // namespace tilewise::ptx
