// The tensor memory accelerator: one thread starts the copy of a box of a tensor; an mbarrier
// counts its bytes in. Coordinates are elements, innermost first; what lies outside the tensor
// arrives as zeros and is not stored.
#pragma once

#include "cuda/device/ptx/base.h"
#include "cuda/device/tensor_map.h"

namespace tilewise {

struct TmaCoordinates {
  int32_t c0, c1, c2, c3;
};

}  // namespace tilewise

namespace tilewise::ptx {

TW_DEVICE void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// L2 eviction policies, to be passed as hints.
TW_DEVICE uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
TW_DEVICE uint64_t l2_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

struct TmaLoad {
  const TensorMap* map;
  uint64_t* barrier;
  uint64_t l2_policy;
};

TW_DEVICE void tma_load_4d(const TmaLoad& load, uint32_t s_target, TmaCoordinates at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(s_target),
      "l"(load.map), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3),
      "r"(shared_address(load.barrier)), "l"(load.l2_policy)
      : "memory");
}

TW_DEVICE void tma_store_4d(const TensorMap* map, uint32_t s_source, TmaCoordinates at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(map),
      "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(s_source)
      : "memory");
}

// Plain runs of bytes, multiples of 16 at addresses that are: to shared memory ...
TW_DEVICE void tma_load_bytes(uint64_t* barrier, uint32_t s_target, const void* g_source,
                              uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(s_target),
      "l"(g_source), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// ... and from it.
TW_DEVICE void tma_store_bytes(void* g_target, uint32_t s_source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(g_target),
               "r"(s_source), "r"(bytes)
               : "memory");
}

// Adds `bytes` of float32 from shared to global memory, in L2.
TW_DEVICE void tma_reduce_add_f32(float* g_target, uint32_t s_source, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(g_target),
      "r"(s_source), "r"(bytes)
      : "memory");
}

TW_DEVICE void tma_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until at most kPending groups still read their shared memory.
template <int kPending>
TW_DEVICE void tma_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until at most kPending groups are still unfinished.
template <int kPending>
TW_DEVICE void tma_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tilewise::ptx
