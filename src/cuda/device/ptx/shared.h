// Loads and stores of shared memory by address.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

TW_DEVICE void store_shared(uint32_t s_target, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(s_target), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

TW_DEVICE void store_shared(uint32_t s_target, const uint32_t (&r)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(s_target), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

TW_DEVICE void load_shared(uint32_t (&r)[4], uint32_t s_source) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(s_source)
               : "memory");
}

TW_DEVICE float2 load_shared_pair(uint32_t s_source) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(s_source)
               : "memory");
  return pair;
}

}  // namespace tilewise::ptx
