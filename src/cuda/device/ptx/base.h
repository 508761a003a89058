// What every device header starts from. A function in ptx/ is one instruction: its name, its
// operands, nothing else. Device headers include nothing from outside the library, so that NVRTC
// compiles a kernel in about a second.
#pragma once

#include "core/base.h"
#include "cuda/device/element.h"

#define TW_DEVICE __device__ __forceinline__

namespace tilewise::ptx {

// Pointers into shared memory are 32-bit addresses in PTX.
TW_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace tilewise::ptx
