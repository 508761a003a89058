// f16 (IEEE binary16) and bf16 to and from f32, one number at a time, round to nearest even.
// Kernels use vector instructions; this is for everything else, and what tests hold those against.
#pragma once

#include <cstdint>
#include <cstring>

namespace tilewise {

inline float bits_to_f32(std::uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline std::uint32_t f32_to_bits(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof f);
  return bits;
}

inline float bf16_to_f32(std::uint16_t h) {
  return bits_to_f32(std::uint32_t{h} << 16);
}

inline std::uint16_t f32_to_bf16(float f) {
  const std::uint32_t bits = f32_to_bits(f);
  if (f != f) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // stay NaN, made quiet
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16, magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00u)  // inf and NaN keep their payload
    return bits_to_f32(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Shifted into place the exponent is 112 too small; the product also makes subnormals right.
  const float scaled = bits_to_f32(magnitude << 13) * 5.192296858534828e33f;  // 2^112
  return bits_to_f32(sign | f32_to_bits(scaled));
}

inline std::uint16_t f32_to_f16(float f) {
  const std::uint32_t bits = f32_to_bits(f), sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<std::uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds at f16's subnormal spacing
    const float rounded = bits_to_f32(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (f32_to_bits(rounded) - 0x3F000000u));
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<std::uint16_t>(sign | (rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13);
}

}  // namespace tilewise
