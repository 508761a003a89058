// Reading and converting an array. Wide types pass through a small buffer, so a file of f64 needs
// no second copy of itself.
#include "io/payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace tilewise::io {
namespace {

constexpr std::int64_t kChunk = 8192;  // elements; 64 KiB of f64 stay in L1 and L2

struct Wide {
  const Source& source;
  const Payload& payload;
  std::int64_t elements;
};

// Calls convert_one(value, index, &out) -> Status for every element of a 64-bit type.
template <class From, class To, class ConvertOne>
Status read_wide(const Wide& in, To* out, ConvertOne&& convert_one) {
  std::array<From, kChunk> chunk;
  for (std::int64_t at = 0; at < in.elements; at += kChunk) {
    const std::int64_t count = std::min(kChunk, in.elements - at);
    Status s =
        in.source.read(in.payload.offset + at * sizeof(From), chunk.data(), count * sizeof(From));
    for (std::int64_t i = 0; s.ok() && i < count; ++i)
      s = convert_one(chunk[i], at + i, out[at + i]);
    if (!s.ok()) return s;
  }
  return {};
}

Status read_f64(const Wide& in, float* out) {
  return read_wide<double>(in, out, [](double x, std::int64_t, float& to) {
    to = static_cast<float>(x);  // IEEE: past the largest float lies infinity
    return Status();
  });
}

Status read_i64(const Wide& in, std::int32_t* out, const std::string& what) {
  using Limits = std::numeric_limits<std::int32_t>;
  return read_wide<std::int64_t>(in, out, [&](std::int64_t x, std::int64_t i, std::int32_t& to) {
    to = static_cast<std::int32_t>(x);
    if (x >= Limits::min() && x <= Limits::max()) return Status();
    return in.source.bad(fmt::format("{}[{}] is {}; an index fits in int32", what, i, x));
  });
}

bool fits(StoredType type, Role role) {
  const bool integer = type == StoredType::kI32 || type == StoredType::kI64;
  return integer == (role == Role::kIndices);
}

DType loaded_as(StoredType type) {
  switch (type) {
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kBF16:
      return DType::kBF16;
    case StoredType::kI32:
    case StoredType::kI64:
      return DType::kI32;
    default:
      return DType::kF32;
  }
}

}  // namespace

std::int64_t size_of(StoredType type) {
  switch (type) {
    case StoredType::kF16:
    case StoredType::kBF16:
      return 2;
    case StoredType::kF64:
    case StoredType::kI64:
      return 8;
    default:
      return 4;
  }
}

const char* name_of(StoredType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "f64", "i32", "i64"};
  return kNames[static_cast<int>(type)];
}

Expected<HostTensor> read_payload(const Source& source, const Payload& payload, Role role,
                                  const std::string& what) {
  if (!fits(payload.type, role))
    return source.bad(fmt::format("{} is {}; accepted is {}", what, name_of(payload.type),
                                  role == Role::kNumbers ? "f32, f16, bf16 or f64" : "i32 or i64"));
  if (payload.shape.empty() || payload.shape.size() > kMaxRank)
    return source.bad(fmt::format("{} has shape {}, rank {}; accepted is rank 1 to {}", what,
                                  shape_text(payload.shape), payload.shape.size(), kMaxRank));
  const auto bytes = checked_bytes(payload.shape, size_of(payload.type));
  const std::uint64_t left = source.size() - std::min(source.size(), payload.offset);
  if (!bytes || static_cast<std::uint64_t>(*bytes) > left)
    return source.bad(
        fmt::format("truncated: {} of {} {} does not fit in the {} bytes that are there", what,
                    name_of(payload.type), shape_text(payload.shape), left));

  Expected<HostTensor> tensor = HostTensor::create(loaded_as(payload.type), payload.shape);
  if (!tensor.ok()) return source.bad(tensor.status().message());
  const Wide wide{source, payload, tensor->elements()};
  Status s;
  if (payload.type == StoredType::kF64)
    s = read_f64(wide, tensor->as<float>().data());
  else if (payload.type == StoredType::kI64)
    s = read_i64(wide, tensor->as<std::int32_t>().data(), what);
  else
    s = source.read(payload.offset, tensor->data(), static_cast<std::uint64_t>(*bytes));
  if (!s.ok()) return s;
  if (payload.type == StoredType::kF64) tensor->set_was_f64();
  return tensor;
}

}  // namespace tilewise::io
