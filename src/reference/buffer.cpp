// See buffer.h. The poison is a quiet NaN in f32 (0x7fe17fe1), f16 (0x7fe1) and bf16 alike; read as
// an index it is far out of any range.
#include "reference/buffer.h"

#include <algorithm>
#include <cstring>

#include "reference/element.h"

namespace tilewise::reference {
namespace {

constexpr std::int64_t kMarginBytes = 256;
constexpr std::uint8_t kPoison[2] = {0xe1, 0x7f};  // little endian 0x7fe1

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& extents) {
  std::vector<std::int64_t> strides(extents.size());
  std::int64_t stride = 1;
  for (std::size_t i = extents.size(); i-- > 0; stride *= extents[i]) strides[i] = stride;
  return strides;
}

std::int64_t product_of(const std::vector<std::int64_t>& extents) {
  std::int64_t n = 1;
  for (const std::int64_t e : extents) n *= e;
  return n;
}

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::kDense:
      return "dense";
    case Layout::kPadded:
      return "padded";
    case Layout::kHeadsFirst:
      return "heads-first";
    case Layout::kFused:
      return "fused";
  }
  return "?";
}

Buffer::Buffer(std::int64_t elements, DType dtype)
    : dtype_(dtype), bytes_(elements * size_of(dtype) + 2 * kMarginBytes) {
  poison();
}

void Buffer::poison() {
  for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = kPoison[i % 2];
}

void Buffer::seal() {
  sealed_ = bytes_;
}

Tensor Buffer::view(std::int64_t offset, std::vector<std::int64_t> shape,
                    std::vector<std::int64_t> strides) {
  Tensor t;
  t.data = bytes_.data() + kMarginBytes + offset * size_of(dtype_);
  t.dtype = dtype_;
  t.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  return t;
}

Buffer Buffer::make(const TensorSpec& spec, Layout layout, Tensor* view) {
  std::vector<std::int64_t> extents = spec.shape, strides;
  const std::size_t rank = extents.size();
  if (layout == Layout::kHeadsFirst && rank >= 3) {
    std::swap(extents[rank - 3], extents[rank - 2]);
    strides = dense_strides(extents);
    std::swap(strides[rank - 3], strides[rank - 2]);
  } else {
    // Odd gaps: rows start at every alignment.
    if (layout == Layout::kPadded || layout == Layout::kFused)
      for (std::size_t i = 0; i < rank; ++i) extents[i] += i + 1 == rank ? 3 : 1;
    strides = dense_strides(extents);
  }
  Buffer buffer(product_of(extents), spec.dtype);
  *view = buffer.view(0, spec.shape, strides);
  return buffer;
}

Buffer Buffer::fuse(const std::vector<TensorSpec>& specs, const std::vector<Tensor*>& views) {
  const std::size_t lead = specs[0].shape.size() - 2;
  std::vector<std::int64_t> extents(specs[0].shape.begin(), specs[0].shape.begin() + lead);
  std::int64_t row = 0;
  for (const TensorSpec& s : specs) row += s.shape[lead] * s.shape[lead + 1];
  extents.push_back(row);
  Buffer buffer(product_of(extents), specs[0].dtype);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::int64_t d = specs[i].shape[lead + 1];
    std::vector<std::int64_t> strides = dense_strides(extents);
    strides.back() = d;
    strides.push_back(1);
    *views[i] = buffer.view(offset, specs[i].shape, strides);
    offset += specs[i].shape[lead] * d;
  }
  return buffer;
}

bool Buffer::surroundings_intact(const std::vector<Tensor>& views) const {
  std::vector<std::uint8_t> bytes = bytes_;
  for (const Tensor& t : views) {
    const std::int64_t start = static_cast<const std::uint8_t*>(t.data) - bytes_.data();
    for_each_offset(t, [&](std::int64_t offset) {
      const std::int64_t at = start + offset * size_of(t.dtype);
      for (std::int64_t i = at; i < at + size_of(t.dtype); ++i) bytes[i] = kPoison[i % 2];
    });
  }
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != kPoison[i % 2]) return false;
  return true;
}

}  // namespace tilewise::reference
