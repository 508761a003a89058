// Ping-pong: consumer warpgroups take turns at issuing matrix products, so that the softmax of one
// runs under the products of the others (FlashAttention-3, section 3.1). The turn is a token that
// goes round; barrier kFirstId + i is where warpgroup i waits for it.
#pragma once

#include "cuda/device/ptx/sync.h"

namespace tilewise::tile {

template <int kWarpgroups>
struct Turn {
  static constexpr uint32_t kFirstId = 1;
  static constexpr uint32_t kThreads = 2 * 128;  // the one that waits and the one that passes
  int warpgroup;

  // Once, before the first wait: the last warpgroup hands the token to warpgroup 0.
  TW_DEVICE void open() const {
    if (kWarpgroups > 1 && warpgroup == kWarpgroups - 1)
      ptx::named_barrier_arrive(kFirstId, kThreads);
  }
  TW_DEVICE void wait() const {
    if constexpr (kWarpgroups > 1) ptx::named_barrier_sync(kFirstId + warpgroup, kThreads);
  }
  TW_DEVICE void pass() const {
    if constexpr (kWarpgroups > 1) {
      const int next = warpgroup == kWarpgroups - 1 ? 0 : warpgroup + 1;
      ptx::named_barrier_arrive(kFirstId + next, kThreads);
    }
  }
};

}  // namespace tilewise::tile
