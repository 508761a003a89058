// Where a kernel's machine code comes from: this process, the user's cache directory, NVRTC; in
// that order. A cache entry is named and checked by a digest of source, headers, architecture and
// compiler, written under another name and renamed, so processes may share the directory; an entry
// that is corrupt or foreign is compiled again, and a cache that can't be written is done without.
#pragma once

#include <string>

#include "tilewise/status.hpp"

namespace tilewise::cuda {

Expected<std::string> cubin_for(const std::string& source, const std::string& arch);

// The directory in use: TILEWISE_CACHE, or tilewise/ in the user's cache directory; may be empty.
std::string cache_directory();

}  // namespace tilewise::cuda
