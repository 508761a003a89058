// Hopper forward: one persistent CTA a multiprocessor, warp-specialized.
//
//   warpgroup 0       producer: one thread keeps the rings of Q, K and V filled by TMA
//   warpgroups 1..n   consumers: 64 query rows each; for the key tiles from last to first
//                       S = Q K^T;  P = exp2(scale S - shift);  O = O * factor + P V
//
// A step's products (S of the tile at hand, P V of the one before) are issued together, and the row
// maxima are taken under the second. Consumers take turns at issuing, so one's
// softmax runs under the others' products (tile/turn.h). The same step leads from one work item to
// the next, so the tensor cores run dry only at the very end (bridge).
//
// Shared memory: Q tile_q x D, and `stages` each of K and V, tile_kv x D (forward_config.h adds it
// up). Registers of a consumer thread: S tile_kv/2, P tile_kv/4, O Dv/2, Q D/4 if kept, and about
// 30 more; D = 128 with 128 x 128 tiles: 64 + 32 + 64 + 32 of 240. docs/forward_sm90.md has the
// rest.
#pragma once

#include "cuda/device/sm90/forward_consumer.h"

namespace tilewise::sm90 {

// Rows of Q that packing leaves empty are never loaded. They had better hold numbers: what is done
// to scores that grow is done to the whole warp's.
template <ForwardConfig C>
TW_DEVICE void clear_empty_rows(Shared<C>& shared) {
  if constexpr (C.tile_q % C.packed_heads != 0) {
    for (uint8_t* const s_stage : shared.q)
      typename Tiles<C>::Q{ptx::shared_address(s_stage)}.clear_rows(
          C.tile_queries() * C.packed_heads, threadIdx.x, C.threads());
    ptx::fence_async_shared();
  }
}

template <ForwardConfig C>
TW_DEVICE void number_columns(Shared<C>& shared) {
  if constexpr (C.defers_alibi()) {
    tile::ColumnNumbers<C.tile_kv>{ptx::shared_address(&shared.column_numbers)}.write(threadIdx.x,
                                                                                      C.threads());
    ptx::fence_async_shared();
  }
}

template <ForwardConfig C>
requires Valid<C> TW_DEVICE void forward(const ForwardParams& p) {
  extern __shared__ __align__(1024) uint8_t s_memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(s_memory);
  // setmaxnreg would wait for ever for registers that the CTA was not launched with.
  static_assert(C.producer_registers() + C.consumers() * C.consumer_registers() <=
                65536 / C.threads() / 8 * 8 * (C.consumers() + 1));
  static_assert(sizeof(Shared<C>) <= C.smem_bytes(), "smem_bytes() counts what Shared holds");

  if (threadIdx.x == 0) {
    ptx::tma_prefetch_map(&p.q);
    ptx::tma_prefetch_map(&p.k);
    ptx::tma_prefetch_map(&p.v);
    shared.q_ring.init(4 * C.consumers());
    shared.k_ring.init(4 * C.consumers());
    shared.v_ring.init(4 * C.consumers());
    shared.work_ring.init(4 * C.consumers());
    ptx::fence_mbarrier_init();
  }
  clear_empty_rows<C>(shared);
  number_columns<C>(shared);
  __syncthreads();

  // Up to here the end of the kernel before runs beside; the next one may start the same way.
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::registers_decrease<C.producer_registers()>();
    if (threadIdx.x == 0) Producer<C>{p, shared}.run();
  } else {
    ptx::registers_increase<C.consumer_registers()>();
    const int number = warpgroup - 1;
    Consumer<C>{p, shared, number, {number}}.run();
  }
}

}  // namespace tilewise::sm90
