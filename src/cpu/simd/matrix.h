// Views of f32 tiles in scratch memory, and the padding that lets kernels run without column tails.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base.h"

namespace tilewise::cpu {

// Floats to which every tile's rows are padded: one 64-byte line, a whole number of vectors of any
// tier.
inline constexpr int64_t kPad = 16;

constexpr int64_t padded(int64_t n) {
  return round_up(n, kPad);
}

// Units of two 16-bit numbers that a depth takes, in whole AMX tiles.
constexpr int64_t pairs_of(int64_t depth) {
  return round_up(depth, int64_t{32}) / 2;
}

struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
  int64_t part = 0;  // from one part of split numbers to the next (simd/parts-inl.h)
  float* row(int64_t r) const { return data + r * stride; }
  Matrix from_row(int64_t r) const { return {row(r), stride, part}; }
  Matrix from_col(int64_t c) const { return {data + c, stride, part}; }
  Matrix at_part(int64_t p) const { return {data + p * part, stride, part}; }
};

// The left operand of a product, read one number at a time: (row, k) at row * row_stride + k *
// depth_stride.
struct Left {
  const float* data;
  int64_t row_stride, depth_stride, part;
  Left from_row(int64_t r) const { return {data + r * row_stride, row_stride, depth_stride, part}; }
  Left from_depth(int64_t k) const {
    return {data + k * depth_stride, row_stride, depth_stride, part};
  }
};

// The right operand, read in whole vectors: (k, col) at k * stride + col.
struct Right {
  const float* data;
  int64_t stride, part;
  Right from_col(int64_t c) const { return {data + c, stride, part}; }
  Right from_depth(int64_t k) const { return {data + k * stride, stride, part}; }
};

inline Left left(Matrix m) {
  return {m.data, m.stride, 1, m.part};
}
inline Left left_transposed(Matrix m) {
  return {m.data, 1, m.stride, m.part};
}
inline Right right(Matrix m) {
  return {m.data, m.stride, m.part};
}

struct Extent {
  int64_t rows, cols, depth;
};

enum class Store { kSet, kAdd };

// A size beyond every machine, where sums and products of sizes stop.
inline constexpr int64_t kTooManyBytes = int64_t{1} << 60;

constexpr int64_t saturated_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kTooManyBytes : min_of(product, kTooManyBytes);
}

// Hands out 64-byte aligned pieces of a workspace. Over a null base it only counts, so that a
// workspace's size and its layout are one piece of code.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const int64_t bytes = saturated_product(count, static_cast<int64_t>(sizeof(T)));
    used_ = min_of(used_ + round_up(bytes, int64_t{64}), kTooManyBytes);
    return p;
  }
  Matrix matrix(int64_t rows, int64_t cols) {
    return {take<float>(saturated_product(rows, padded(cols))), padded(cols)};
  }
  int64_t bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace tilewise::cpu
