// The stream parser and the layout check.
#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/host_tensor.h"

namespace tilewise::io {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxExtents = 64;

// Where in {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, ..} the stream is.
class HeaderStream final : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) return enter(Place::kFile);
    if (place_ == Place::kFile)
      return enter(key_ == "__metadata__" ? Place::kMetadata : Place::kTensor);
    return unexpected("an object");
  }

  bool key(string_t& key) override {
    key_ = key;
    if (place_ == Place::kFile) {
      name_ = key;
      fields_ = {};
      if (key == "__metadata__") return !seen_metadata_++ || fail("has __metadata__ twice");
      return header.tensors.try_emplace(key).second ||
             fail(fmt::format("has the tensor \"{:.64}\" twice", key));
    }
    if (place_ == Place::kMetadata)
      return !header.metadata.count(key) || fail(fmt::format("has metadata \"{:.64}\" twice", key));
    const auto at = std::find(std::begin(kFields), std::end(kFields), key) - kFields;
    if (at == std::ssize(kFields))
      return fail(
          fmt::format("gives \"{:.64}\" the key \"{:.64}\"; accepted are dtype, shape and "
                      "data_offsets",
                      name_, key));
    return !std::exchange(fields_[at], true) ||
           fail(fmt::format("gives \"{:.64}\" the key {} twice", name_, key));
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) header.metadata[key_] = text;
    if (place_ == Place::kTensor && key_ == "dtype") tensor().dtype = text;
    return place_ == Place::kMetadata || (place_ == Place::kTensor && key_ == "dtype") ||
           unexpected("a string");
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return unexpected("an array");
    offsets_.clear();
    return enter(Place::kArray);
  }

  bool number_unsigned(number_unsigned_t n) override {
    if (place_ != Place::kArray) return unexpected("a number");
    if (key_ == "data_offsets") {
      offsets_.push_back(n);
      return offsets_.size() <= 2 ||
             fail(fmt::format("gives \"{:.64}\" more than 2 offsets", name_));
    }
    if (n > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return fail(fmt::format("gives \"{:.64}\" the extent {}, past 2^63", name_, n));
    tensor().shape.push_back(static_cast<std::int64_t>(n));
    return tensor().shape.size() <= kMaxExtents ||
           fail(fmt::format("gives \"{:.64}\" more than {} extents", name_, kMaxExtents));
  }

  bool end_array() override {
    place_ = Place::kTensor;
    if (key_ == "shape") return true;
    if (offsets_.size() != 2)
      return fail(fmt::format("gives \"{:.64}\" {} offsets, not 2", name_, offsets_.size()));
    tensor().begin = offsets_[0];
    tensor().end = offsets_[1];
    return true;
  }

  bool end_object() override {
    const Place left =
        std::exchange(place_, place_ == Place::kFile ? Place::kOutside : Place::kFile);
    if (left != Place::kTensor) return true;
    const auto missing = std::find(std::begin(fields_), std::end(fields_), false) - fields_.begin();
    return missing == std::ssize(kFields) ||
           fail(fmt::format("gives \"{:.64}\" no {}", name_, kFields[missing]));
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    return fail(fmt::format("is not JSON at byte {}", at));
  }

 private:
  enum class Place { kOutside, kFile, kMetadata, kTensor, kArray };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};

  SafetensorsEntry& tensor() { return header.tensors[name_]; }
  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool fail(std::string what) {
    error = std::move(what);
    return false;
  }
  bool unexpected(const char* found) {
    if (place_ == Place::kOutside) return fail(fmt::format("is {}, not an object", found));
    return fail(fmt::format("has {} at \"{:.64}\" where the format has none", found, key_));
  }

  Place place_ = Place::kOutside;
  std::string key_, name_;
  std::array<bool, 3> fields_{};
  std::vector<std::uint64_t> offsets_;
  int seen_metadata_ = 0;
};

Status bad(const std::string& what) {
  return {StatusCode::kInvalidArgument, "the safetensors header " + what};
}

// Bytes of one element; 0 for a dtype that this library has never heard of.
std::int64_t element_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "I8" || dtype == "U8" || dtype.substr(0, 3) == "F8_") return 1;
  return 0;
}

}  // namespace

Expected<SafetensorsHeader> parse_safetensors_header(std::string_view text) {
  HeaderStream stream;
  if (!json::sax_parse(text.begin(), text.end(), &stream)) return bad(stream.error);
  return std::move(stream.header);
}

Status check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> by_offset;
  for (const Item& item : header.tensors) by_offset.push_back(&item);
  std::stable_sort(by_offset.begin(), by_offset.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t covered = 0;
  for (const Item* item : by_offset) {
    const SafetensorsEntry& t = item->second;
    const std::string where =
        fmt::format("puts \"{:.64}\" at bytes {} to {}", item->first, t.begin, t.end);
    if (t.begin > t.end) return bad(where + ", which ends before it begins");
    if (t.end > data_bytes)
      return bad(fmt::format("{}; the file has {} (truncated?)", where, data_bytes));
    if (t.begin < covered)
      return bad(fmt::format("{}, which overlaps a tensor that ends at {}", where, covered));
    if (t.begin > covered)
      return bad(fmt::format("{}, which leaves a gap from {}", where, covered));
    covered = t.end;
    const std::int64_t element = element_bytes(t.dtype);
    const auto bytes = checked_bytes(t.shape, std::max<std::int64_t>(element, 1));
    if (element && (!bytes || static_cast<std::uint64_t>(*bytes) != t.end - t.begin))
      return bad(fmt::format("{}, {} bytes, but {} {} has {}", where, t.end - t.begin, t.dtype,
                             shape_text(t.shape),
                             bytes ? std::to_string(*bytes) : "more than 2^63"));
  }
  if (covered != data_bytes)
    return bad(
        fmt::format("describes {} bytes, but {} follow it (oversized)", covered, data_bytes));
  return {};
}

}  // namespace tilewise::io
