// Where a kernel's machine code comes from, in this order:
//   1. a bundle, made ahead of time: TILEWISE_BUNDLE, or tilewise.bundle beside the library;
//   2. the cache directory: TILEWISE_CACHE, or tilewise/ in the user's cache directory;
//   3. NVRTC, whose result goes into the cache.
// A cache entry is named and checked by a digest of source, headers, architecture and compiler,
// written under another name and renamed, so processes may share the directory. What is corrupt,
// foreign or too new for the driver is passed over; a cache that can't be written is done without.
#pragma once

#include <string>

#include "cuda/runtime/bundle.h"
#include "cuda/runtime/nvrtc.h"
#include "tilewise/status.hpp"

namespace tilewise::cuda {

// What a bundle's entries and the cache's are named by.
std::string cubin_key(const std::string& source, const std::string& arch);
const std::string& headers_digest();

// The places of this process; empty where there is none.
struct StorePaths {
  std::string bundle, cache;
};
StorePaths store_paths();

struct Compiler {
  Expected<std::string> (*version)() = nvrtc_version;
  Expected<Compiled> (*compile)(const std::string& source, const std::string& arch) = nvrtc_compile;
};

class CubinStore {
 public:
  explicit CubinStore(const StorePaths& paths, const Compiler& compiler = {});

  // `driver_version` as the driver tells it, 12040 for 12.4; 0 where no driver will load the
  // kernel. kUnavailable says for each of the three places why it had nothing.
  Expected<Cubin> find(const std::string& source, const std::string& arch,
                       int driver_version) const;

  const Expected<Bundle>& bundle() const { return bundle_; }

 private:
  Expected<Cubin> find_in_bundle(const std::string& key, int driver_version) const;

  Expected<Bundle> bundle_;
  std::string cache_;
  Compiler compiler_;
};

// This process' store, opened once.
const CubinStore& cubin_store();

}  // namespace tilewise::cuda
