// A bundle: one file of kernels compiled ahead of time (`tilewise compile`), for machines without
// NVRTC and for a first call that compiles nothing.
//
//   tilewise bundle 1 HEADERS INDEX_BYTES INDEX_DIGEST \n
//   KEY ARCH COMPILER OFFSET BYTES DIGEST \n      the index, a line for each kernel, sorted by KEY
//   the cubins, OFFSET counted from the file's begin
//
// HEADERS is the digest of the device sources that the library embeds: kernels of another version
// are foreign. KEY is cubin_key(). Nothing of a file is believed before its digest agrees.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/status.hpp"

namespace tilewise::cuda {

// A kernel's machine code and the compiler that made it, "13.0".
struct Cubin {
  std::string code;
  std::string compiler;
};

struct BundleEntry {
  std::string key, arch;
  Cubin cubin;
};

// The whole file; entries of one key are kept once.
std::string bundle_bytes(std::string_view headers_digest, std::vector<BundleEntry> entries);

class Bundle {
 public:
  // Reads the index. kUnavailable where there is no file; kInvalidArgument with the path and what
  // is wrong with it: no bundle, corrupt, or made for `headers_digest` of another version.
  static Expected<Bundle> open(const std::string& path, std::string_view headers_digest);

  // kUnavailable when the bundle lacks it, kInvalidArgument when its bytes are not what was
  // written.
  Expected<Cubin> find(std::string_view key) const;

  const std::string& path() const { return path_; }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string key, compiler, digest;
    std::uint64_t offset = 0, bytes = 0;
  };
  static bool parse_line(std::string_view line, std::uint64_t file_bytes, Entry& entry);

  std::string path_;
  std::vector<Entry> entries_;
};

}  // namespace tilewise::cuda
