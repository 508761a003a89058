// ptx/math.h and attention/exp2.h, a row each: a function of one number, over values that matter.
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

// Pairs of 16-bit numbers; `round` makes them of whole numbers.
std::vector<std::uint32_t> pairs(std::uint16_t (*round)(float), int step) {
  std::vector<std::uint32_t> out;
  for (int i = 0; i < 64; ++i) {
    const auto x = static_cast<float>(i * step % 41 - 20),
               y = static_cast<float>(i * step % 37 - 18);
    out.push_back(round(x) | std::uint32_t{round(y)} << 16);
  }
  return out;
}
template <float (*kWiden)(std::uint16_t)>
std::uint32_t least_of_pairs(std::uint32_t a, std::uint32_t b) {
  const auto less = [](std::uint32_t x, std::uint32_t y) {
    return kWiden(static_cast<std::uint16_t>(x)) < kWiden(static_cast<std::uint16_t>(y)) ? x : y;
  };
  return less(a & 0xFFFF, b & 0xFFFF) | less(a >> 16, b >> 16) << 16;
}
const Registered kMinBf16("ptx::min_pair, bf16", [] {
  return binary("ptx::min_pair<Element::kBf16>(a0, b0)", least_of_pairs<bf16_to_f32>,
                pairs(f32_to_bf16, 7), pairs(f32_to_bf16, 11));
});
const Registered kMinF16("ptx::min_pair, f16", [] {
  return binary("ptx::min_pair<Element::kF16>(a0, b0)", least_of_pairs<f16_to_f32>,
                pairs(f32_to_f16, 7), pairs(f32_to_f16, 11));
});

std::uint32_t product_rounded_down(std::uint32_t a, std::uint32_t b) {
  const double exact = static_cast<double>(bits_to_f32(a)) * bits_to_f32(b);
  const auto nearest = static_cast<float>(exact);
  return f32_to_bits(nearest > exact ? std::nextafter(nearest, -kInf) : nearest);
}
std::vector<std::uint32_t> bits_of(const std::vector<float>& x) {
  std::vector<std::uint32_t> out;
  for (const float value : x) out.push_back(f32_to_bits(value));
  return out;
}
const Registered kDown("ptx::multiply_down", [] {
  return binary("__float_as_uint(ptx::multiply_down(__uint_as_float(a0), __uint_as_float(b0)))",
                product_rounded_down, bits_of(values(-3, 5, 1)), bits_of(values(7.1f, -2.9f, 3)));
});

std::uint32_t permuted(std::uint32_t a, std::uint32_t selector) {
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t nibble = selector >> 4 * i & 0xF, byte = a >> 8 * (nibble & 3) & 0xFF;
    out |= (nibble & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
  }
  return out;
}
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
