// The only place that reads an environment variable, so that there is one list of them:
//   TILEWISE_CPU_ISA    caps the CPU's SIMD tier
//   TILEWISE_BUNDLE     the kernels compiled ahead of time, instead of tilewise.bundle beside the
//                       library
//   TILEWISE_CACHE      where compiled GPU kernels are kept, instead of the user's cache directory
//   TILEWISE_NVRTC      the NVRTC library to load, where the dynamic linker does not find it
//   TILEWISE_RACECHECK  GPU kernels that compute-sanitizer's racecheck can follow, and slower
//                       (cuda/device/tile/ring.h)
#pragma once

#include <cstdlib>

namespace tilewise {

// Null when not set or empty.
inline const char* environment(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace tilewise
