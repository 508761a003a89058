// A ring of shared-memory stages between one producer thread (TMA) and consumer warps (WGMMA).
// Each stage has two barriers, named by event: `full` (its bytes have landed) and `empty` (every
// consumer warp has read it). Both sides walk the stages with a cursor that carries the phase, so
// neither a kernel's loop nor its arithmetic ever mentions parity.
#pragma once

#include "cuda/device/ptx/mbarrier.h"
#include "cuda/device/ptx/sync.h"

namespace tilewise::tile {

// A warp that is done arrives once. compute-sanitizer's racecheck doesn't see that its lanes have
// met before, so for that tool every lane arrives (TILEWISE_RACECHECK).
#ifdef TW_EVERY_LANE_ARRIVES
inline constexpr uint32_t kArrivalsOfWarp = 32;
#else
inline constexpr uint32_t kArrivalsOfWarp = 1;
#endif
TW_DEVICE void warp_arrive(uint64_t* barrier) {
  if (kArrivalsOfWarp > 1 || ptx::elect_one()) ptx::mbarrier_arrive(barrier);
}

// How many arrivals fill a stage (1 for the copy engine), and how many empty it.
struct Arrivals {
  uint32_t full, empty;
};

template <int kStages>
struct RingBarriers {
  uint64_t full[kStages];
  uint64_t empty[kStages];

  // One thread, before the CTA's first barrier.
  TW_DEVICE void init(Arrivals arrivals) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&full[i], arrivals.full);
      ptx::mbarrier_init(&empty[i], arrivals.empty);
    }
  }
  TW_DEVICE void init(uint32_t consumer_warps) {
    init({1, consumer_warps * kArrivalsOfWarp});
  }
};

template <int kStages>
struct RingCursor {
  uint32_t stage = 0;
  uint32_t phase = 0;

  TW_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }

  // Producer: the stage is free (in the first round at once), and `bytes` will come.
  TW_DEVICE uint64_t* acquire(RingBarriers<kStages>& ring, uint32_t bytes) const {
    ptx::mbarrier_wait(&ring.empty[stage], phase ^ 1);
    ptx::mbarrier_arrive_expect_bytes(&ring.full[stage], bytes);
    return &ring.full[stage];
  }

  // Producer, for a stage filled by ordinary stores: the stage is free ...
  TW_DEVICE void wait_free(RingBarriers<kStages>& ring) const {
    ptx::mbarrier_wait(&ring.empty[stage], phase ^ 1);
  }
  // ... and filled.
  TW_DEVICE void publish(RingBarriers<kStages>& ring) {
    ptx::mbarrier_arrive(&ring.full[stage]);
    advance();
  }

  // Consumer: the stage has landed.
  TW_DEVICE void wait(RingBarriers<kStages>& ring) const {
    ptx::mbarrier_wait(&ring.full[stage], phase);
  }

  // Consumer, each warp: done reading the stage; on to the next. What was read by ordinary loads is
  // in use by now.
  TW_DEVICE void release(RingBarriers<kStages>& ring) {
    warp_arrive(&ring.empty[stage]);
    advance();
  }
  // The same, every thread, where such loads may be under way: a copy engine's writes to the stage
  // are of another proxy, and only a fence keeps them from overtaking.
  TW_DEVICE void release_after_loads(RingBarriers<kStages>& ring) {
    ptx::fence_async_shared();
    release(ring);
  }
  // The same for a thread that works alone.
  TW_DEVICE void release_alone(RingBarriers<kStages>& ring) {
    ptx::mbarrier_arrive(&ring.empty[stage]);
    advance();
  }
};

}  // namespace tilewise::tile
