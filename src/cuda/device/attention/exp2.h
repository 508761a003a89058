// 2^x on the FMA units, for the share of a tile's exponentials that the special-function unit
// (16 a clock and SM) has no room for.
//
// x = n + f with n the nearest integer and |f| <= 1/2. Adding 1.5 * 2^23 leaves n in the low bits
// of the sum; 2^f is a polynomial of degree 3, minimax on [-1/2, 1/2] with relative error
// 7.5e-5 (rounding P to bf16 costs 2e-3, to fp16 2.4e-4); n goes into the exponent by an integer
// addition.
#pragma once

#include "cuda/device/ptx/math.h"

namespace tilewise {

// For x <= 126. Below -126, -inf included, the result is 2^-126: nothing beside a row sum of at
// least 2^-8, but not 0, so tiles that hold masked scores use ex2.
TW_DEVICE float exp2_polynomial(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  x = fmaxf(x, -126.0f);
  const float shifted = x + kMagic;
  const float f = x - (shifted - kMagic);
  float p = 0.05517166907f;
  p = fmaf(p, f, 0.24261112219f);
  p = fmaf(p, f, 0.69326098546f);
  p = fmaf(p, f, 0.99992807354f);
  return ptx::add_exponent(p, shifted);
}

}  // namespace tilewise
