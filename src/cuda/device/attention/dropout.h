// Which probabilities dropout keeps (core/philox.h). The generator needs no scores, so it runs
// while the products are in flight; what it finds waits as one bit an element.
//
// An element's bit lies where one shift and one byte permute, which repeats a byte's top bit, make
// the mask of a packed pair of probabilities: pair k of a thread has bits 7 - k % 16 / 2 of bytes
// 2 (k % 2) and 2 (k % 2) + 1 of word k / 16.
#pragma once

#include "cuda/device/attention/scores.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct KeptBits {
  static constexpr int kPairs = C.tile_kv / 4;
  uint32_t word[(kPairs + 15) / 16] = {};

  TW_DEVICE static constexpr uint32_t bit_of(int pair, int element) {
    return 1u << (8 * (2 * (pair % 2) + element) + 7 - pair % 16 / 2);
  }

  TW_DEVICE void draw(const ForwardParams& p, const Work& w, Place at, int kv_row) {
    const uint32_t threshold = p.dropout_threshold << 16;
#pragma unroll
    for (int block = 0; block < C.tile_kv / 16; ++block) {  // 16 x 16, a call a lane
      const Philox4 call = dropout_block(p.dropout_key, w.batch, w.head, at.row[0] / 16,
                                         kv_row / 16 + block, at.row[0] % 8 * 4 + at.quad_lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 4 * block + i;
        const uint32_t bits = call.w[i % 2 * 2 + i / 2];  // of row half i % 2, column half i / 2
        if (bits << 16 >= threshold) word[pair / 16] |= bit_of(pair, 0);
        if (bits >= threshold) word[pair / 16] |= bit_of(pair, 1);
      }
    }
  }

  // Zeroes the dropped ones. Their row sum has been formed: LSE doesn't change.
  TW_DEVICE void drop(uint32_t (&probabilities)[C.tile_kv / 16][4]) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint32_t shifted = word[pair / 16] << pair % 16 / 2;
      probabilities[pair / 4][pair % 4] &=
          ptx::permute_bytes(shifted, pair % 2 ? 0xBBAAu : 0x9988u);
    }
  }
};

}  // namespace tilewise::sm90
