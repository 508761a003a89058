// Fences, named barriers, register hand-over and warp-level exchange.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::ptx {

// Ordinary writes to shared memory become visible to TMA and WGMMA, which read through the async
// proxy. In each writing thread, before the barrier that the reader waits at.
TW_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for global memory, between ordinary accesses and TMA's.
TW_DEVICE void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Programmatic dependent launch: the next kernel of the stream may start ...
TW_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// ... but what the kernel before it wrote is to be had only after this.
TW_DEVICE void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Named barriers 1 to 15 (0 is __syncthreads). `threads` counts all that take part: those that wait
// and those that only arrive.
TW_DEVICE void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TW_DEVICE void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers per thread, a multiple of 8, for every warp of the executing warpgroup. Waits until the
// pool of the CTA has enough.
template <int kRegisters>
TW_DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TW_DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

template <class T>
TW_DEVICE T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(kAllLanes, value, lane_mask);
}

TW_DEVICE bool warp_any(bool predicate) {
  return __any_sync(kAllLanes, predicate);
}

TW_DEVICE void warp_sync() {
  __syncwarp();
}

// The same number in every lane, told to the compiler: branches on it need no reconvergence, and
// addresses made of it stay in uniform registers, where WGMMA wants its descriptors.
TW_DEVICE int warp_uniform(int value) {
  return __shfl_sync(kAllLanes, value, 0);
}

// True in one lane of the warp, which must be converged.
TW_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

// The thread's number in its CTA, read afresh: for code that is too short of registers to keep it.
TW_DEVICE int thread_number() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}

}  // namespace tilewise::ptx
