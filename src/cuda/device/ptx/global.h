// Stores to global memory, for pointers whose address space the compiler can't see.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

TW_DEVICE void store_global(float* g_target, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(g_target), "f"(value) : "memory");
}

TW_DEVICE void store_global(void* g_target, const uint32_t (&r)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(g_target), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace tilewise::ptx
