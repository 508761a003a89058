// Column numbers of a tile, as the right operand of a product of depth 16: B(n, k) = n, for the 8 k
// that count; the left operand holds zeros for the other 8. Added to a tile's scores, such a
// product puts them on a slope.
//
// K-major without a swizzle: 8 columns times 8 k are 128 bytes in a row. The second 8 k are read
// from the place of the first (a leading offset of 0), since all they must be is finite.
#pragma once

#include "cuda/device/ptx/math.h"
#include "cuda/device/ptx/shared.h"

namespace tilewise::tile {

template <int kCount>
struct ColumnNumbers {
  static_assert(kCount <= 256, "bf16 holds integers up to 256");
  uint32_t s_address;  // 128-byte aligned

  // Thread `thread` of `threads` writes its share.
  TW_DEVICE void write(int thread, int threads) const {
    for (int n = thread; n < kCount; n += threads) {
      const uint32_t pair = ptx::pack<Element::kBf16>(static_cast<float>(n), static_cast<float>(n));
      ptx::store_shared(s_address + 16 * n, {pair, pair, pair, pair});
    }
  }

  TW_DEVICE uint64_t descriptor() const {
    constexpr uint64_t kStride = uint64_t{128 / 16} << 32;
    return kStride | s_address >> 4;
  }
};

}  // namespace tilewise::tile
