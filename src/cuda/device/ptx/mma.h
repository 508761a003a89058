// mma.sync: one warp multiplies 16 x 16 by 16 x 8. Where WGMMA can't be used, for it reads B from
// shared memory.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

struct MmaB {
  uint32_t r[2];
};

// d += A B. A and d lie as WGMMA's do (ptx/wgmma.h): d[0], d[1] of a row, d[2], d[3] 8 below.
template <Element kElement>
TW_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], MmaB b) {
  if constexpr (kElement == Element::kBf16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.r[0]), "r"(b.r[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.r[0]), "r"(b.r[1]));
}

}  // namespace tilewise::ptx
