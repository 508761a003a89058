// The four lanes of a quad share the rows of a WGMMA accumulator.
#pragma once

#include "cuda/device/ptx/sync.h"

namespace tilewise::tile {

// In: pair[j] holds columns 8 j + 2 lane of the quad's row. Out: columns 8 lane + 2 j.
TW_DEVICE void transpose_quad(uint32_t (&pair)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & bit) continue;
      const uint32_t other = ptx::shuffle_xor(upper ? pair[j] : pair[j | bit], bit);
      if (upper)
        pair[j] = other;
      else
        pair[j | bit] = other;
    }
  }
}

}  // namespace tilewise::tile
