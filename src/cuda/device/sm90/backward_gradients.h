// From accumulators to gradients in the output's type: dK and dV of a warpgroup's 64 keys, and the
// 64 x 64 blocks of dQ. As in the forward, 16-byte stores from registers.
#pragma once

#include "cuda/device/ptx/global.h"
#include "cuda/device/ptx/math.h"
#include "cuda/device/tile/quad.h"

namespace tilewise::sm90::backward {

// Rows of a gradient: the first of a warpgroup's 64, and where it ends.
struct GradientRows {
  uint16_t* g_first;
  int64_t stride;
  int rows, columns;  // to be written
};

// Thread `thread` of 128 holds blocks of 8 columns as a WGMMA accumulator has them, from column
// `column` on.
template <Element kElement, int kCount>
TW_DEVICE void store_gradient(const GradientRows& to, int column, const float (&sum)[kCount],
                              float scale) {
  constexpr int kBlocks = kCount / 4;  // of 8 columns
  static_assert(kBlocks % 4 == 0);
  const int thread = ptx::thread_number() % 128, quad_lane = thread % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    const int first = column + quad_lane * 8;
    uint16_t* const g_row = to.g_first + row * to.stride + first;
#pragma unroll
    for (int b = 0; b < kBlocks; b += 4) {
      uint32_t pair[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        pair[j] = ptx::pack<kElement>(sum[4 * (b + j) + 2 * r] * scale,
                                      sum[4 * (b + j) + 2 * r + 1] * scale);
      tile::transpose_quad(pair, quad_lane);
      if (row < to.rows && b * 8 + first < to.columns) ptx::store_global(g_row + b * 8, pair);
    }
  }
}

}  // namespace tilewise::sm90::backward
