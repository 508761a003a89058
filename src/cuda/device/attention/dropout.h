// Which probabilities dropout drops (core/philox.h). The generator needs no scores, so it runs
// while the products are in flight; what it finds waits as one bit an element.
//
// A thread's pair k of packed probabilities has bits k % 16 and 16 + k % 16 of word k / 16: a shift
// and a byte permute, which repeats a byte's top bit, make a mask of them.
#pragma once

#include "cuda/device/attention/scores.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct DroppedBits {
  static constexpr int kPairs = C.tile_kv / 4;
  uint32_t word[(kPairs + 15) / 16] = {};

  TW_DEVICE void draw(const ForwardParams& p, const Work& w, Place at, int kv_row) {
    const uint32_t threshold = p.dropout_threshold * 0x10001u;
#pragma unroll
    for (int block = 0; block < C.tile_kv / 16; ++block) {  // 16 x 16, a call a lane
      const Philox4 call = dropout_block(p.dropout_key, w.batch, w.head, at.row[0] / 16,
                                         kv_row / 16 + block, at.row[0] % 8 * 4 + at.quad_lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 4 * block + i;
        const uint32_t bits = call.w[i % 2 * 2 + i / 2];  // of row half i % 2, column half i / 2
        // 1 in each half that is below the threshold. None can borrow from the other.
        const uint32_t below = threshold - ptx::min_halves(bits, threshold);
        word[pair / 16] += ptx::min_halves(below, 0x10001u) << pair % 16;
      }
    }
  }

  // Zeroes the dropped ones. Their row sum has been formed: LSE doesn't change.
  TW_DEVICE void drop(uint32_t (&probabilities)[C.tile_kv / 16][4]) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
      probabilities[pair / 4][pair % 4] &=
          ~ptx::permute_bytes(word[pair / 16] << (15 - pair % 16), 0xBB99u);
  }
};

}  // namespace tilewise::sm90
