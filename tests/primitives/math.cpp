// ptx/math.h and attention/exp2.h, a row each: a function of one number, over values that matter.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.h"
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kUlp = 0x1p-23;

// 256 values from `low` to `high`, evenly, the last one `special`.
std::vector<float> values(float low, float high, float special) {
  std::vector<float> out;
  for (int i = 0; i < 255; ++i) out.push_back(low + (high - low) * static_cast<float>(i) / 254);
  out.push_back(special);
  return out;
}

struct Unary {
  const char* call;  // of x, a float
  double (*exact)(double);
  Tolerance tolerance;
};

Primitive unary(const Unary& f, const std::vector<float>& x) {
  Primitive p;
  p.headers = {"cuda/device/ptx/math.h", "cuda/device/attention/exp2.h"};
  p.body = std::string(
               "  const float x = __uint_as_float(a.in[thread]);\n"
               "  a.out[thread] = __float_as_uint(") +
           f.call + ");";
  p.threads = static_cast<unsigned>(x.size());
  p.tolerance = f.tolerance;
  for (const float value : x) {
    p.in.push_back(f32_to_bits(value));
    p.out.push_back(f32_to_bits(static_cast<float>(f.exact(value))));
  }
  return p;
}

double exact_exp2(double x) {
  return std::exp2(x);
}
double exact_log2(double x) {
  return std::log2(x);
}
double exact_tanh(double x) {
  return std::tanh(x);
}
double exact_rcp(double x) {
  return 1 / x;
}

const Registered kEx2("ptx::ex2", [] {
  return unary({"ptx::ex2(x)", exact_exp2, {2 * kUlp}}, values(-125, 127, -kInf));
});
const Registered kLg2("ptx::lg2", [] {
  return unary({"ptx::lg2(x)", exact_log2, {kUlp, 0x1p-22}}, values(0.001f, 9, kInf));
});
const Registered kRcp("ptx::rcp", [] {
  return unary({"ptx::rcp(x)", exact_rcp, {kUlp}}, values(-70, 71, 0x1p100f));
});
const Registered kTanh("ptx::tanh", [] {
  return unary({"ptx::tanh(x)", exact_tanh, {0x1.01p-11}}, values(-9, 9.07f, kInf));
});
const Registered kPolynomial("exp2_polynomial", [] {
  return unary({"exp2_polynomial(x)", exact_exp2, {1e-4}}, values(-125, 126, 0));
});

// Ties, both signs, subnormals of f16, beyond its range.
std::vector<float> roundable() {
  std::vector<float> out = {0.0f, -0.0f, 65504, 65520, 1e6f, kInf, -kInf, 5.9604645e-8f, 2e-8f};
  for (int i = 0; i < 119; ++i)
    out.push_back((1 + static_cast<float>(i) / 4096) *
                  std::ldexp(i % 2 ? -1.0f : 1.0f, i % 38 - 22));
  return out;
}

Primitive pack(const char* element, std::uint16_t (*round)(float)) {
  Primitive p;
  p.headers = {"cuda/device/ptx/math.h"};
  p.body = std::string("  a.out[thread] = ptx::pack<Element::") + element +
           ">(__uint_as_float(a.in[2 * thread]), __uint_as_float(a.in[2 * thread + 1]));";
  const std::vector<float> x = roundable();
  p.threads = static_cast<unsigned>(x.size() / 2);
  for (std::size_t i = 0; i < x.size(); i += 2) {
    p.in.insert(p.in.end(), {f32_to_bits(x[i]), f32_to_bits(x[i + 1])});
    p.out.push_back(round(x[i]) | std::uint32_t{round(x[i + 1])} << 16);
  }
  return p;
}
const Registered kPackBf16("ptx::pack, bf16", [] { return pack("kBf16", f32_to_bf16); });
const Registered kPackF16("ptx::pack, f16", [] { return pack("kF16", f32_to_f16); });

// A function of two words, bit for bit.
Primitive binary(const std::string& call, std::uint32_t (*exact)(std::uint32_t, std::uint32_t),
                 const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  Primitive p;
  p.headers = {"cuda/device/ptx/math.h"};
  p.body =
      "  [[maybe_unused]] const uint32_t a0 = a.in[2 * thread], b0 = a.in[2 * thread + 1];\n  "
      "a.out[thread] = " +
      call + ";";
  p.threads = static_cast<unsigned>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    p.in.insert(p.in.end(), {a[i], b[i]});
    p.out.push_back(exact(a[i], b[i]));
  }
  return p;
}

std::uint32_t permuted(std::uint32_t a, std::uint32_t selector) {
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> 4 * i & 0xF, byte = a >> 8 * (nibble & 3) & 0xFF;
    out |= (nibble & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
  }
  return out;
}
std::uint32_t exponent_added(std::uint32_t x, std::uint32_t n) {
  return f32_to_bits(
      std::ldexp(bits_to_f32(x), static_cast<int>(n & 0xFF) - (n & 0x80 ? 0x100 : 0)));
}
const Registered kAddExponent("ptx::add_exponent", [] {
  std::vector<std::uint32_t> x, n;
  for (int i = 0; i < 64; ++i) {
    x.push_back(f32_to_bits(1 + static_cast<float>(i) / 64));
    n.push_back(f32_to_bits(12582912.0f + static_cast<float>(3 * i - 96)));  // 1.5 * 2^23 + n
  }
  return binary("__float_as_uint(ptx::add_exponent(__uint_as_float(a0), __uint_as_float(b0)))",
                exponent_added, x, n);
});

const Registered kMinHalves("ptx::min_halves", [] {
  const std::vector<std::uint32_t> a = {0,          0xFFFFFFFF, 0x00010000,
                                        0x8000FFFF, 0x12345678, 0x7FFF8000};
  const std::vector<std::uint32_t> b = {5,          0x80007FFF, 0xFFFF0001,
                                        0x7FFF0001, 0x12355677, 0x80007FFF};
  const auto smaller = [](std::uint32_t x, std::uint32_t y) {
    return std::min(x >> 16, y >> 16) << 16 | std::min(x & 0xFFFF, y & 0xFFFF);
  };
  return binary("ptx::min_halves(a0, b0)", smaller, a, b);
});

const Registered kPermute("ptx::permute_bytes", [] {
  std::vector<std::uint32_t> a, selector;
  for (std::uint32_t i = 0; i < 64; ++i) {
    a.push_back(0x9E3779B9u * (i + 1));
    selector.push_back((0x85EBCA6Bu * (i + 3) >> 8) & 0xBBBB);  // bytes 0 to 3, or their signs
  }
  return binary("ptx::permute_bytes(a0, b0)", permuted, a, selector);
});

std::uint32_t lowest(std::uint32_t count, std::uint32_t) {
  return count < 32 ? (1u << count) - 1 : ~0u;
}
const Registered kLowBits("ptx::low_bits", [] {
  std::vector<std::uint32_t> counts;
  for (std::uint32_t i = 0; i < 48; ++i) counts.push_back(i < 40 ? i : 1u << (i - 17));
  return binary("ptx::low_bits(static_cast<int>(a0))", lowest, counts, counts);
});

// Every 16-bit number but NaN.
Primitive widen(const char* call, float (*exact)(std::uint16_t)) {
  Primitive p;
  p.headers = {"cuda/device/ptx/math.h"};
  p.body = std::string(
               "  for (uint32_t bits = thread; bits < 65536; bits += 512)\n"
               "    a.out[bits] = __float_as_uint(") +
           call + "(static_cast<uint16_t>(bits % 32768 <= a.in[0] ? bits : 0)));";
  p.threads = 512;
  const std::uint32_t infinity =
      exact == static_cast<float (*)(std::uint16_t)>(f16_to_f32) ? 0x7C00u : 0x7F80u;
  p.in = {infinity};
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    p.out.push_back(
        f32_to_bits(exact(static_cast<std::uint16_t>(bits % 32768 <= infinity ? bits : 0))));
  return p;
}
const Registered kWidenBf16("ptx::bf16_to_f32",
                            [] { return widen("ptx::bf16_to_f32", bf16_to_f32); });
const Registered kWidenF16("ptx::f16_to_f32", [] { return widen("ptx::f16_to_f32", f16_to_f32); });

}  // namespace
}  // namespace tilewise::test
