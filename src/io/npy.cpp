// Reading and writing .npy.
#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "io/npy_header.h"

namespace tilewise::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeader = 1 << 20;  // a header of rank 64 needs less than 2 KiB

// The text of the dict and where the array begins.
struct Frame {
  std::string header;
  std::uint64_t data_offset = 0;
};

Expected<Frame> read_frame(const Source& source) {
  std::array<unsigned char, 12> head{};
  const std::uint64_t have = std::min<std::uint64_t>(source.size(), head.size());
  if (Status s = source.read(0, head.data(), have); !s.ok()) return s;
  if (have < 10 ||
      !std::equal(kMagic.begin(), kMagic.end(), head.begin(),
                  [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; }))
    return source.bad(
        "not an .npy file: it does not begin with \\x93NUMPY, a version and a length");
  const int major = head[6], minor = head[7];
  if (major < 1 || major > 3 || minor != 0)
    return source.bad(
        fmt::format("is .npy version {}.{}; accepted are 1.0, 2.0 and 3.0", major, minor));
  const std::uint64_t prefix = major == 1 ? 10 : 12;
  std::uint64_t length = head[8] | std::uint64_t{head[9]} << 8;
  if (major > 1) length |= std::uint64_t{head[10]} << 16 | std::uint64_t{head[11]} << 24;
  if (source.size() < prefix || length > source.size() - prefix)
    return source.bad(fmt::format("truncated: the .npy header claims {} bytes, the file has {}",
                                  length, source.size()));
  if (length > kMaxHeader)
    return source.bad(fmt::format("the .npy header claims {} bytes; accepted are at most {}",
                                  length, kMaxHeader));
  Frame frame{std::string(length, '\0'), prefix + length};
  if (Status s = source.read(prefix, frame.header.data(), length); !s.ok()) return s;
  return frame;
}

std::optional<StoredType> stored_type(std::string_view descr) {
  if (descr == "<f4") return StoredType::kF32;
  if (descr == "<f2") return StoredType::kF16;
  if (descr == "<f8") return StoredType::kF64;
  if (descr == "<i4") return StoredType::kI32;
  if (descr == "<i8") return StoredType::kI64;
  return std::nullopt;
}

std::string refuse_dtype(std::string_view descr) {
  constexpr const char* kAccepted = "accepted are '<f4', '<f2', '<f8', '<i4' and '<i8'";
  if (!descr.empty() && descr[0] == '>')
    return fmt::format("dtype '{:.16}' is big endian; {}: save x.astype(x.dtype.newbyteorder('<'))",
                       descr, kAccepted);
  if (descr == "<V2" || descr == "|V2")
    return fmt::format(
        "dtype '{}' is a 2-byte void, perhaps a bfloat16; {}; keep bf16 in .safetensors", descr,
        kAccepted);
  return fmt::format("dtype '{:.16}' is not supported; {}", descr, kAccepted);
}

}  // namespace

Expected<Payload> parse_npy(const Source& source) {
  const Expected<Frame> frame = read_frame(source);
  if (!frame.ok()) return frame.status();
  const Expected<NpyHeader> header = parse_npy_header(frame->header);
  if (!header.ok()) return source.bad(header.status().message());
  const std::optional<StoredType> type = stored_type(header->descr);
  if (!type) return source.bad(refuse_dtype(header->descr));
  // Both orders are the same when at most one extent is not 1.
  const auto wide_extents = std::count_if(header->shape.begin(), header->shape.end(),
                                          [](std::int64_t extent) { return extent != 1; });
  if (header->fortran_order && wide_extents > 1)
    return source.bad(
        fmt::format("is in Fortran order, shape {}; accepted is C order: save "
                    "numpy.ascontiguousarray(x)",
                    shape_text(header->shape)));
  const auto bytes = checked_bytes(header->shape, size_of(*type));
  const std::uint64_t left = source.size() - frame->data_offset;
  if (!bytes || static_cast<std::uint64_t>(*bytes) != left)
    return source.bad(
        fmt::format("{}: the header describes {} {}, {} bytes, but {} bytes follow it",
                    bytes && static_cast<std::uint64_t>(*bytes) < left ? "oversized" : "truncated",
                    name_of(*type), shape_text(header->shape),
                    bytes ? std::to_string(*bytes) : "more than 2^63", left));
  return Payload{*type, header->shape, frame->data_offset};
}

Expected<HostTensor> read_npy(const Source& source, Role role) {
  const Expected<Payload> payload = parse_npy(source);
  if (!payload.ok()) return payload.status();
  return read_payload(source, *payload, role, "the array");
}

Status write_npy(AtomicFile& file, const Tensor& tensor) {
  const bool integer = tensor.dtype == DType::kI32;
  const std::span<const std::int64_t> shape(tensor.shape.data(),
                                            static_cast<std::size_t>(tensor.rank));
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   integer ? "<i4" : "<f4", shape_text(shape));
  constexpr std::size_t kPrefix = 10, kAlign = 64;  // the array begins at a multiple of 64
  header.append(kAlign - (kPrefix + header.size() + 1) % kAlign, ' ') += '\n';
  const std::string prefix = std::string(kMagic) + '\x01' + '\0' +
                             static_cast<char>(header.size() & 0xFF) +
                             static_cast<char>(header.size() >> 8);
  if (Status s = file.write((prefix + header).data(), prefix.size() + header.size()); !s.ok())
    return s;

  const auto* data = static_cast<const std::byte*>(tensor.data);
  if (size_of(tensor.dtype) == 4) return file.write(data, tensor.elements() * 4);
  std::array<float, 16384> wide;
  for (std::int64_t at = 0; at < tensor.elements(); at += wide.size()) {
    const auto count = std::min<std::int64_t>(wide.size(), tensor.elements() - at);
    widen(data + at * 2, tensor.dtype, count, wide.data());
    if (Status s = file.write(wide.data(), count * sizeof(float)); !s.ok()) return s;
  }
  return {};
}

}  // namespace tilewise::io
