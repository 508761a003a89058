// Reading and writing .safetensors.
#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace tilewise::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit

std::optional<StoredType> stored_type(std::string_view dtype) {
  if (dtype == "F32") return StoredType::kF32;
  if (dtype == "F16") return StoredType::kF16;
  if (dtype == "BF16") return StoredType::kBF16;
  if (dtype == "F64") return StoredType::kF64;
  if (dtype == "I32") return StoredType::kI32;
  if (dtype == "I64") return StoredType::kI64;
  return std::nullopt;
}

const char* dtype_text(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI32:
      return "I32";
    default:
      return "F32";
  }
}

// The first few names, to help whoever mistyped one.
std::string names_in(const SafetensorsHeader& header) {
  constexpr std::size_t kShown = 12;
  std::string names;
  std::size_t shown = 0;
  for (const auto& [name, entry] : header.tensors) {
    if (shown++ == kShown) break;
    names += fmt::format("{}{:.64}", names.empty() ? "" : ", ", name);
  }
  if (header.tensors.size() > kShown)
    names += fmt::format(" and {} more", header.tensors.size() - kShown);
  return names.empty() ? "no tensor" : names;
}

}  // namespace

Expected<SafetensorsHeader> parse_safetensors(const Source& source) {
  std::array<unsigned char, kLengthBytes> raw{};
  if (source.size() < kLengthBytes)
    return source.bad(
        fmt::format("truncated: a .safetensors file begins with 8 bytes of header "
                    "length, this one has {} bytes",
                    source.size()));
  if (Status s = source.read(0, raw.data(), raw.size()); !s.ok()) return s;
  std::uint64_t length = 0;
  for (std::size_t i = raw.size(); i-- > 0;) length = length << 8 | raw[i];
  const std::uint64_t left = source.size() - kLengthBytes;
  if (length > kMaxHeader)
    return source.bad(
        fmt::format("not a .safetensors file: its header claims {} bytes; accepted are "
                    "at most {}",
                    length, kMaxHeader));
  if (length > left)
    return source.bad(fmt::format(
        "truncated: the safetensors header claims {} bytes, the file has {}", length, left));
  std::string text(length, '\0');
  if (Status s = source.read(kLengthBytes, text.data(), length); !s.ok()) return s;
  Expected<SafetensorsHeader> header = parse_safetensors_header(text);
  if (!header.ok()) return source.bad(header.status().message());
  header->data_offset = kLengthBytes + length;
  if (Status s = check_layout(*header, source.size() - header->data_offset); !s.ok())
    return source.bad(s.message());
  return header;
}

Expected<HostTensor> read_safetensors(const Source& source, const std::string& name, Role role) {
  const Expected<SafetensorsHeader> header = parse_safetensors(source);
  if (!header.ok()) return header.status();
  const auto found = header->tensors.find(name);
  if (found == header->tensors.end())
    return source.bad(fmt::format("has no tensor \"{}\"; it has {}", name, names_in(*header)));
  const SafetensorsEntry& entry = found->second;
  const std::optional<StoredType> type = stored_type(entry.dtype);
  if (!type)
    return source.bad(
        fmt::format("\"{}\" has dtype {:.16}; accepted are F32, F16, BF16, F64, I32 and "
                    "I64",
                    name, entry.dtype));
  return read_payload(source, {*type, entry.shape, header->data_offset + entry.begin}, role,
                      "\"" + name + "\"");
}

Status write_safetensors(AtomicFile& file, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that every tensor is aligned.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return size_of(a->tensor.dtype) > size_of(b->tensor.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const NamedTensor* t : order) {
    const Tensor& v = t->tensor;
    const std::int64_t end = offset + v.elements() * size_of(v.dtype);
    header[t->name] = {{"dtype", dtype_text(v.dtype)},
                       {"shape", std::vector(v.shape.begin(), v.shape.begin() + v.rank)},
                       {"data_offsets", {offset, end}}};
    offset = end;
  }
  using Handler = nlohmann::ordered_json::error_handler_t;
  std::string text = header.dump(-1, ' ', false, Handler::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::array<unsigned char, kLengthBytes> raw{};
  for (std::size_t i = 0; i < raw.size(); ++i)
    raw[i] = static_cast<unsigned char>(text.size() >> 8 * i);
  Status s = file.write(raw.data(), raw.size());
  if (s.ok()) s = file.write(text.data(), text.size());
  for (const NamedTensor* t : order)
    if (s.ok()) s = file.write(t->tensor.data, t->tensor.elements() * size_of(t->tensor.dtype));
  return s;
}

}  // namespace tilewise::io
