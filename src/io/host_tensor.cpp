// Memory and dtype conversion of HostTensor.
#include "io/host_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/half.h"

namespace tilewise::io {

std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                          std::int64_t element_bytes) {
  // A zero extent must not hide a product of the others that would overflow a stride.
  std::int64_t product = element_bytes;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty |= extent == 0;
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product))
      return std::nullopt;
  }
  return empty ? 0 : product;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Expected<HostTensor> HostTensor::create(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.empty() || shape.size() > kMaxRank)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a tensor has rank 1 to {}, not {}", kMaxRank, shape.size()));
  const std::optional<std::int64_t> bytes = checked_bytes(shape, size_of(dtype));
  if (!bytes)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("shape {} of {} is not addressable: extents are 0 or more and the "
                              "bytes below 2^63",
                              shape_text(shape), name_of(dtype)));
  HostTensor t;
  // An empty tensor is given, too, so it needs an address.
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(*bytes, 64));
  t.memory_.reset(::operator new (size, std::align_val_t{64}, std::nothrow));
  if (!t.memory_)
    return Status(StatusCode::kOutOfMemory, fmt::format("no memory for {} bytes ({} of {})", size,
                                                        shape_text(shape), name_of(dtype)));
  t.view_.data = t.memory_.get();
  t.view_.dtype = dtype;
  t.view_.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = t.view_.rank - 1; i >= 0; --i) {
    t.view_.shape[i] = shape[i];
    t.view_.strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return t;
}

void widen(const void* from, DType dtype, std::int64_t count, float* to) {
  if (dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(from), count, to);
    return;
  }
  const auto* half = static_cast<const std::uint16_t*>(from);
  const auto widen_one = dtype == DType::kF16 ? f16_to_f32 : bf16_to_f32;
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen_one(half[i]);
}

Expected<HostTensor> convert(const HostTensor& from, DType to) {
  if (from.dtype() == DType::kI32 || to == DType::kI32)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} can't become {}: f32, f16 and bf16 convert to each other",
                              name_of(from.dtype()), name_of(to)));
  Expected<HostTensor> result = HostTensor::create(to, from.shape());
  if (!result.ok()) return result;
  const std::int64_t count = from.elements();
  if (from.dtype() == to) {
    std::copy_n(static_cast<const std::byte*>(from.data()), from.bytes(),
                static_cast<std::byte*>(result->data()));
  } else if (to == DType::kF32) {
    widen(from.data(), from.dtype(), count, static_cast<float*>(result->data()));
  } else {
    const auto narrow_one = to == DType::kF16 ? f32_to_f16 : f32_to_bf16;
    auto* out = static_cast<std::uint16_t*>(result->data());
    const auto* in = static_cast<const std::byte*>(from.data());
    for (std::int64_t i = 0; i < count; ++i) {
      float x;
      widen(in + i * size_of(from.dtype()), from.dtype(), 1, &x);
      out[i] = narrow_one(x);
    }
  }
  return result;
}

}  // namespace tilewise::io
