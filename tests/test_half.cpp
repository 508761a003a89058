// core/half.h against definitions in double: every f16 and bf16 number one way, and the other way
// every number, every midpoint between neighbours and what lies just beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/half.h"

namespace {

using namespace tilewise;

struct Format {
  int exponent_bits, fraction_bits;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
};

const Format kF16{5, 10, f32_to_f16, f16_to_f32};
const Format kBF16{8, 7, f32_to_bf16, bf16_to_f32};

// The number that IEEE 754 gives to these bits.
double value_of(const Format& f, std::uint32_t bits) {
  const std::uint32_t fraction = bits & ((1u << f.fraction_bits) - 1);
  const int top = (1 << f.exponent_bits) - 1, bias = top / 2;
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & top;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == top)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  const double one = exponent ? 1.0 : 0.0;
  return sign *
         std::ldexp(one + std::ldexp(fraction, -f.fraction_bits), (exponent ? exponent : 1) - bias);
}

std::uint32_t infinity_bits(const Format& f) {
  return ((1u << f.exponent_bits) - 1) << f.fraction_bits;
}

void check_widening(const Format& f) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = value_of(f, bits);
    const float got = f.widen(static_cast<std::uint16_t>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(f.widen(f.narrow(got)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), want) << bits;
      ASSERT_EQ(std::signbit(got), bits >> 15 == 1) << bits;
      ASSERT_EQ(f.narrow(got), bits);
    }
  }
}

// Between neighbours a and a + 1 the midpoint goes to the even one, what is beside it to the
// nearer.
void check_rounding(const Format& f) {
  const std::uint32_t infinity = infinity_bits(f);
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of(f, bits);
    // Past the largest number rounding goes on as if the exponent range did.
    const double high =
        bits + 1 < infinity ? value_of(f, bits + 1) : 2 * low - value_of(f, bits - 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const std::uint32_t even = bits % 2 ? bits + 1 : bits;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f.narrow(s * middle), sign | even) << bits;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, 0.0f)), sign | bits) << bits;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, HUGE_VALF)), sign | (bits + 1)) << bits;
    }
  }
}

TEST(Half, F16WidensExactly) {
  check_widening(kF16);
}
TEST(Half, BF16WidensExactly) {
  check_widening(kBF16);
}
TEST(Half, F16RoundsToNearestEven) {
  check_rounding(kF16);
}
TEST(Half, BF16RoundsToNearestEven) {
  check_rounding(kBF16);
}

TEST(Half, InfinitiesAndOverflow) {
  for (const Format& f : {kF16, kBF16}) {
    EXPECT_EQ(f.narrow(HUGE_VALF), infinity_bits(f));
    EXPECT_EQ(f.narrow(-HUGE_VALF), 0x8000u | infinity_bits(f));
    EXPECT_EQ(f.narrow(std::numeric_limits<float>::max()), infinity_bits(f));
  }
}

}  // namespace
