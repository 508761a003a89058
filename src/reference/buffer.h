// Memory for tests: every byte starts as NaN, tensors are carved out of the middle, and afterwards
// whatever lies outside them (margins, gaps between strided rows) must be as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::reference {

// How a tensor lies in memory. `kFused` interleaves several tensors row by row, as slices of one
// projection's result; alone in its buffer a fused tensor is padded.
enum class Layout : std::uint8_t { kDense, kPadded, kHeadsFirst, kFused };
const char* name_of(Layout layout);

struct TensorSpec {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(std::int64_t elements, DType dtype);

  // One tensor in a buffer of its own.
  static Buffer make(const TensorSpec& spec, Layout layout, Tensor* view);
  // Tensors (.., heads, D) that share dtype and all dimensions but the last two, in one buffer
  // (.., sum of heads x D).
  static Buffer fuse(const std::vector<TensorSpec>& specs, const std::vector<Tensor*>& views);

  // Fills everything with NaN again.
  void poison();
  // Remembers the bytes of now, for `changed`.
  void seal();
  bool changed() const { return bytes_ != sealed_; }
  // Whether every byte that belongs to no element of `views` is still poison.
  bool surroundings_intact(const std::vector<Tensor>& views) const;

 private:
  Tensor view(std::int64_t offset, std::vector<std::int64_t> shape,
              std::vector<std::int64_t> strides);

  DType dtype_ = DType::kF32;
  std::vector<std::uint8_t> bytes_, sealed_;
};

}  // namespace tilewise::reference
