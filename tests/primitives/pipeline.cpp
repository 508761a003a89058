// ptx/mbarrier.h, tile/ring.h and tile/turn.h: who waits for whom.
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

// Three phases of 64 arrivals; in the second, bytes are still to come when all have arrived.
const Registered kMbarrier("mbarrier", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/mbarrier.h", "cuda/device/ptx/sync.h", "cuda/device/ptx/tma.h"};
  p.threads = 64;
  p.smem_bytes = 1024 + 256;
  p.body = R"cuda(
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(s_memory);
  if (thread == 0) {
    ptx::mbarrier_init(barrier, 64);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  uint32_t* const g_mine = a.out + 4 * thread;
  g_mine[0] = ptx::mbarrier_try_wait(barrier, 0);
  __syncthreads();
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_wait(barrier, 0);
  if (thread == 0) {
    ptx::mbarrier_expect_bytes(barrier, 64);
    ptx::mbarrier_arrive_expect_bytes(barrier, 192);
  } else {
    ptx::mbarrier_arrive(barrier);
  }
  g_mine[1] = ptx::mbarrier_try_wait(barrier, 1);
  __syncthreads();
  const uint32_t s_target = ptx::shared_address(s_memory) + 1024;
  if (thread == 0) ptx::tma_load_bytes(barrier, s_target, a.in, 256);
  ptx::mbarrier_wait(barrier, 1);
  g_mine[2] = reinterpret_cast<uint32_t*>(s_memory + 1024)[thread];
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_wait(barrier, 0);
  g_mine[3] = ptx::mbarrier_try_wait(barrier, 0);)cuda";
  for (std::uint32_t t = 0; t < p.threads; ++t) {
    p.in.push_back(7 * t);
    p.out.insert(p.out.end(), {0, 0, 7 * t, 1});
  }
  return p;
});

// Eleven rounds through three stages, each 128 words that TMA brings and four warps read.
Primitive ring_filled_by_tma(const std::string& release) {
  constexpr std::uint32_t kRounds = 11;
  Primitive p;
  p.headers = {"cuda/device/ptx/tma.h", "cuda/device/tile/ring.h"};
  p.threads = 160;
  p.smem_bytes = 1024 + 3 * 512;
  p.body = std::string(R"cuda(
  constexpr int kRounds = 11;
  auto& ring = *reinterpret_cast<tile::RingBarriers<3>*>(s_memory);
  if (thread == 0) {
    ring.init(4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  tile::RingCursor<3> cursor;
  if (thread == 128) {
    for (int i = 0; i < kRounds; ++i, cursor.advance()) {
      uint64_t* const barrier = cursor.acquire(ring, 512);
      const uint32_t s_target = ptx::shared_address(s_memory) + 1024 + 512 * cursor.stage;
      ptx::tma_load_bytes(barrier, s_target, a.in + 128 * i, 512);
    }
  } else if (thread < 128) {
    for (int i = 0; i < kRounds; ++i) {
      cursor.wait(ring);
      const uint32_t* const s_words =
          reinterpret_cast<uint32_t*>(s_memory + 1024 + 512 * cursor.stage);
      a.out[128 * i + thread] = s_words[127 - thread];
      ptx::warp_sync();
      )cuda") +
           release + R"cuda(
    }
  })cuda";
  for (std::uint32_t i = 0; i < 128 * kRounds; ++i) {
    p.in.push_back(i * i);
    const std::uint32_t from = i / 128 * 128 + 127 - i % 128;
    p.out.push_back(from * from);
  }
  return p;
}
const Registered kRing("ring filled by TMA",
                       [] { return ring_filled_by_tma("cursor.release(ring);"); });
const Registered kLoadedRing("ring filled by TMA, loads under way", [] {
  return ring_filled_by_tma("cursor.release_after_loads(ring);");
});
const Registered kRingByHand("ring filled by TMA, released by hand", [] {
  return ring_filled_by_tma("tile::warp_arrive(&ring.empty[cursor.stage]); cursor.advance();");
});

const Registered kStoredRing("ring filled by stores", [] {
  Primitive p;
  p.headers = {"cuda/device/tile/ring.h"};
  p.threads = 64;
  p.smem_bytes = 1024;
  p.body = R"cuda(
  auto& ring = *reinterpret_cast<tile::RingBarriers<2>*>(s_memory);
  volatile uint32_t* const s_stage = reinterpret_cast<uint32_t*>(s_memory + 512);
  if (thread == 0) {
    ring.init({1, 1});
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  tile::RingCursor<2> cursor;
  if (thread == 0) {
    for (int i = 0; i < 9; ++i) {
      cursor.wait_free(ring);
      s_stage[cursor.stage] = a.in[0] * i;
      cursor.publish(ring);
    }
  } else if (thread == 32) {
    for (int i = 0; i < 9; ++i) {
      cursor.wait(ring);
      a.out[i] = s_stage[cursor.stage];
      cursor.release_alone(ring);
    }
  })cuda";
  p.in = {17};
  for (std::uint32_t i = 0; i < 9; ++i) p.out.push_back(17 * i);
  return p;
});

// Three warpgroups, however long each takes, write into one log in turn.
const Registered kTurn("turn", [] {
  Primitive p;
  p.headers = {"cuda/device/tile/turn.h"};
  p.threads = 384;
  p.smem_bytes = 1024;
  p.body = R"cuda(
  volatile uint32_t* const s_count = reinterpret_cast<uint32_t*>(s_memory);
  if (thread == 0) *s_count = 0;
  __syncthreads();
  const tile::Turn<3> turn{ptx::warp_uniform(thread / 128)};
  turn.open();
  for (int round = 0; round < 6; ++round) {
    turn.wait();
    if (thread % 128 == 0) {
      const uint32_t at = *s_count;
      a.out[at] = 10 * round + turn.warpgroup;
      *s_count = at + 1;
    }
    turn.pass();
    __nanosleep(3000 * ((turn.warpgroup + round) % 3));
  }
  if (turn.warpgroup == 0) turn.wait();  // takes the token that is still on its way)cuda";
  p.body += "\n";
  for (std::uint32_t round = 0; round < 6; ++round)
    for (std::uint32_t warpgroup = 0; warpgroup < 3; ++warpgroup)
      p.out.push_back(10 * round + warpgroup);
  return p;
});

}  // namespace
}  // namespace tilewise::test
