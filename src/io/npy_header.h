// The dict literal of an .npy header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/status.hpp"

namespace tilewise::io {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Keys in any order, each exactly once; Python's white space; nothing after the dict. The error's
// message says what was found where.
Expected<NpyHeader> parse_npy_header(std::string_view text);

}  // namespace tilewise::io
