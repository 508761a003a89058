// Tensor: a view of memory that the caller owns. Layout names: B batch, Sq / Sk query / key length,
// Hq / Hkv heads, D / Dv head dims of Q and K / of V and O.
#pragma once

#include <array>
#include <cstdint>

namespace tilewise {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kI32 };

// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kI32 ? 4 : 2;
}

// "f32", "f16", "bf16" or "i32".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

struct Device {
  enum class Kind : std::uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
};

inline constexpr int kMaxRank = 4;

struct Tensor {
  void* data = nullptr;  // null: the tensor is not given
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  // in elements; may be any 64-bit value, 0 included

  bool given() const { return data != nullptr; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// A dense row-major view. `shape` lists `rank` extents, outermost first.
template <class... Extent>
Tensor make_tensor(void* data, DType dtype, Extent... shape) {
  static_assert(sizeof...(shape) >= 1 && sizeof...(shape) <= kMaxRank, "rank is 1 to 4");
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = sizeof...(shape);
  t.shape = {static_cast<std::int64_t>(shape)...};
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.strides[i] = stride;
    stride *= t.shape[i];
  }
  return t;
}

}  // namespace tilewise
