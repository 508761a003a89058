// Any bytes as an .npy file, read as numbers and as indices: once as they are and once with a valid
// magic and length put in front of what is up to the first newline, so that the dict gets its
// share.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "io/npy.h"

namespace {

using namespace tilewise::io;

void read(const std::string& bytes) {
  const Source source(std::as_bytes(std::span(bytes)), "fuzz.npy");
  for (const Role role : {Role::kNumbers, Role::kIndices}) {
    const auto tensor = read_npy(source, role);
    // What was accepted is no larger than the file.
    if (tensor.ok() && static_cast<std::size_t>(tensor->bytes()) > bytes.size()) __builtin_trap();
    if (!tensor.ok() && tensor.status().message().empty()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  const std::size_t length = std::min({bytes.find('\n') + 1, size, std::size_t{65535}});
  const std::string magic("\x93NUMPY\x01\0", 8);
  read(magic + static_cast<char>(length) + static_cast<char>(length >> 8) + bytes);
  return 0;
}
