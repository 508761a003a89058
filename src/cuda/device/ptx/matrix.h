// ldmatrix, stmatrix: a warp loads or stores four 8 x 8 matrices of 16-bit numbers; lane i gives
// the address of row i % 8 of matrix i / 8.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

TW_DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t s_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(s_row)
               : "memory");
}

TW_DEVICE void stmatrix_x4(uint32_t s_row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

TW_DEVICE void stmatrix_x4_transposed(uint32_t s_row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace tilewise::ptx
