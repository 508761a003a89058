// Memory and dtype conversion of HostTensor.
#include "io/host_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/half.h"

namespace tilewise::io {
namespace {

void narrow(const float* from, std::int64_t count, DType dtype, void* to) {
  auto* half = static_cast<std::uint16_t*>(to);
  if (dtype == DType::kF16)
    std::transform(from, from + count, half, [](float x) { return f32_to_f16(x); });
  else if (dtype == DType::kBF16)
    std::transform(from, from + count, half, [](float x) { return f32_to_bf16(x); });
  else
    std::copy_n(from, count, static_cast<float*>(to));
}

}  // namespace

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
  const auto* half = static_cast<const std::uint16_t*>(from);
  if (dtype == DType::kF16)
    std::transform(half, half + count, to, [](std::uint16_t h) { return f16_to_f32(h); });
  else if (dtype == DType::kBF16)
    std::transform(half, half + count, to, [](std::uint16_t h) { return bf16_to_f32(h); });
  else
    std::copy_n(static_cast<const float*>(from), count, to);
}

Expected<HostTensor> convert(const HostTensor& from, DType to) {
  if (from.dtype() == DType::kI32 || to == DType::kI32)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} can't become {}: f32, f16 and bf16 convert to each other",
                              name_of(from.dtype()), name_of(to)));
  Expected<HostTensor> result = HostTensor::create(to, from.shape());
  if (!result.ok()) return result;
  const auto* in = static_cast<const std::byte*>(from.data());
  auto* out = static_cast<std::byte*>(result->data());
  std::array<float, 4096> wide;  // 16 KiB stay in L1
  for (std::int64_t at = 0; at < from.elements(); at += wide.size()) {
    const auto count = std::min<std::int64_t>(wide.size(), from.elements() - at);
    widen(in + at * size_of(from.dtype()), from.dtype(), count, wide.data());
    narrow(wide.data(), count, to, out + at * size_of(to));
  }
  return result;
}

}  // namespace tilewise::io
