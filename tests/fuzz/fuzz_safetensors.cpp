// Any bytes as a .safetensors file, every tensor in it read as numbers and as indices: once as they
// are and once with a true length put in front of what is up to the first newline.
#include <cstddef>
#include <cstdint>
#include <string>

#include "io/safetensors.h"

namespace {

using namespace tilewise::io;

void read(const std::string& bytes) {
  const Source source(std::as_bytes(std::span(bytes)), "fuzz.safetensors");
  const auto header = parse_safetensors(source);
  if (!header.ok()) {
    if (header.status().message().empty()) __builtin_trap();
    return;
  }
  int budget = 16;  // each read parses the header again
  for (const auto& [name, entry] : header->tensors) {
    if (budget-- == 0) break;
    for (const Role role : {Role::kNumbers, Role::kIndices}) {
      const auto tensor = read_safetensors(source, name, role);
      // What was accepted is no larger than the file.
      if (tensor.ok() && static_cast<std::size_t>(tensor->bytes()) > bytes.size()) __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  const std::size_t length = std::min(bytes.find('\n') + 1, size);
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(length >> 8 * i);
  read(prefix + bytes);
  return 0;
}
