// The JSON header of a .safetensors file, parsed as a stream: memory stays in proportion to the
// text whatever it nests, and a name that occurs twice is seen.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/status.hpp"

namespace tilewise::io {

struct SafetensorsEntry {
  std::string dtype;  // "F32", "BF16", ... as the file says
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes from data_offset
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_offset = 0;  // from the start of the file
};

// Errors: not JSON, not the format's structure, a name twice.
Expected<SafetensorsHeader> parse_safetensors_header(std::string_view json);

// The format's promises: offsets lie inside `data_bytes`, tensors neither overlap nor leave a gap,
// and for every dtype with a known size the offsets agree with the shape.
Status check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes);

}  // namespace tilewise::io
