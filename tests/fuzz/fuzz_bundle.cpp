// Any bytes as a kernel bundle: once as they are and once as an index with a true title in front of
// it, so that what stands behind the digest gets its share.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "cuda/runtime/bundle.h"
#include "cuda/runtime/digest.h"

namespace {

using namespace tilewise;

void read(const std::string& bytes) {
  static const std::string path =
      std::filesystem::temp_directory_path() / ("tilewise-fuzz-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << bytes;
  const auto bundle = cuda::Bundle::open(path, "headers");
  if (!bundle.ok()) {
    if (bundle.status().message().empty()) __builtin_trap();
    return;
  }
  for (const char* key : {"", "a", "key", "z"})
    if (const auto cubin = bundle->find(key); cubin.ok() && cubin->code.size() > bytes.size())
      __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  read("tilewise bundle 1 headers " + std::to_string(size) + " " + cuda::digest_of(bytes) + "\n" +
       bytes);
  return 0;
}
