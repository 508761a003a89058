// One element of a tensor of any dtype as a double, and back. Offsets are in elements.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "tilewise/tensor.hpp"

namespace tilewise::reference {

inline double load_element(const Tensor& t, std::int64_t offset) {
  const char* p = static_cast<const char*>(t.data) + offset * size_of(t.dtype);
  std::uint16_t half;
  switch (t.dtype) {
    case DType::kF32: {
      float f;
      std::memcpy(&f, p, sizeof f);
      return f;
    }
    case DType::kI32: {
      std::int32_t i;
      std::memcpy(&i, p, sizeof i);
      return i;
    }
    case DType::kF16:
      std::memcpy(&half, p, sizeof half);
      return f16_to_f32(half);
    case DType::kBF16:
      std::memcpy(&half, p, sizeof half);
      return bf16_to_f32(half);
  }
  return 0;
}

// Rounds to nearest even (through float, which is where every value of ours comes from).
inline void store_element(const Tensor& t, std::int64_t offset, double value) {
  char* p = static_cast<char*>(t.data) + offset * size_of(t.dtype);
  const float f = static_cast<float>(value);
  if (t.dtype == DType::kF32) {
    std::memcpy(p, &f, sizeof f);
  } else if (t.dtype == DType::kI32) {
    const auto i = static_cast<std::int32_t>(value);
    std::memcpy(p, &i, sizeof i);
  } else {
    const std::uint16_t half = t.dtype == DType::kF16 ? f32_to_f16(f) : f32_to_bf16(f);
    std::memcpy(p, &half, sizeof half);
  }
}

inline float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(f32_to_f16(x));
    case DType::kBF16:
      return bf16_to_f32(f32_to_bf16(x));
    default:
      return x;
  }
}

// Calls visit(offset) for every element, the last index fastest.
template <class Visit>
void for_each_offset(const Tensor& t, Visit&& visit) {
  std::int64_t index[kMaxRank] = {}, offset = 0;
  for (std::int64_t n = t.elements(); n > 0; --n) {
    visit(offset);
    for (int dim = t.rank - 1; dim >= 0; --dim) {
      offset += t.strides[dim];
      if (++index[dim] < t.shape[dim]) break;
      offset -= index[dim] * t.strides[dim];
      index[dim] = 0;
    }
  }
}

}  // namespace tilewise::reference
