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

TW_DEVICE void load_global(uint32_t (&r)[4], const void* g_source) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(g_source)
               : "memory");
}

// A counter that CTAs hand work over by: what was written before the addition is visible after a
// load that sees it.
TW_DEVICE void add_release(int32_t* g_counter, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(g_counter), "r"(value) : "memory");
}
TW_DEVICE int32_t load_acquire(const int32_t* g_counter) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(g_counter) : "memory");
  return value;
}

}  // namespace tilewise::ptx
