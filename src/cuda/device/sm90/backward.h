// The main kernel of the Hopper backward: one persistent CTA a multiprocessor, warp-specialized.
// K and V of a key tile stay; Q and dO of the query tiles that see it pass by.
//
//   warpgroup 0      one thread each loads by TMA, hands out work items, and (two) sends dQ away
//                    (backward_producer.h)
//   warpgroups 1, 2  consumers; for every query tile i
//                      S^T = K Q^T;  dP^T = V dO^T
//                      P^T = exp2(scale S^T - LSE);  dS^T = P^T * (dP^T - delta)
//                      dV += P^T dO;  dK += dS^T Q;  dQ = dS K
//                    (backward_narrow.h; backward_wide.h for head dims above 128)
//
// Transposed, P and dS feed dV and dK straight from registers. docs/backward_sm90.md has the rest.
#pragma once

#include "cuda/device/sm90/backward_narrow.h"
#include "cuda/device/sm90/backward_wide.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
TW_DEVICE void produce(const BackwardParams& p, Shared<C>& shared) {
  switch (threadIdx.x) {
    case 0:
      return Producer<C>{p, shared}.run();
    case 32:
      return hand_out_work<C>(p, shared);
    case 64:
      return DqWriter<C>{p, shared, 0}.run();
    case 96:
      return DqWriter<C>{p, shared, 1}.run();
    default:
      return;
  }
}

template <BackwardConfig C>
TW_DEVICE void consume(const BackwardParams& p, Shared<C>& shared, int consumer) {
  if constexpr (!C.wide)
    NarrowConsumer<C>{{p, shared, consumer}}.run();
  else if (consumer == 0)
    WideConsumer<C, Gathers::kValues>{{p, shared, 0}}.run();
  else
    WideConsumer<C, Gathers::kKeys>{{p, shared, 1}}.run();
}

template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void main_kernel(const BackwardParams& p) {
  extern __shared__ __align__(1024) uint8_t s_memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(s_memory);
  static_assert(sizeof(Shared<C>) <= C.smem_bytes(), "smem_bytes() counts what Shared holds");

  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&p.q, &p.d_o, &p.k, &p.v}) ptx::tma_prefetch_map(map);
    shared.init_barriers();
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = ptx::warp_uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::registers_decrease<C.kProducerRegisters>();
    produce<C>(p, shared);
  } else {
    ptx::registers_increase<C.kConsumerRegisters>();
    consume<C>(p, shared, warpgroup - 1);
  }
}

}  // namespace tilewise::sm90::backward
