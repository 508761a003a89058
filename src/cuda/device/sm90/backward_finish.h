// The kernel after the main one: dQ from its float32 sums to the output's type, scaled; and the
// sink's gradient. Bound by memory: reads the sums once, from L2 if they are still there.
//
// The sums of a query tile lie as the main kernel's accumulators do: blocks of 64 x 64, of which
// chunk i of 16 bytes of thread t is at [i][t]; so they were written, and are read, in whole lines.
#pragma once

#include "cuda/device/sm90/backward_gradients.h"
#include "cuda/device/sm90/backward_prepare.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
TW_DEVICE void finish_block(const BackwardParams& p, const RowTile<C>& at, int block, bool seen) {
  const Sequence& s = at.sequence;
  const int row = at.first + block / C.dq_panels() * 64, column = block % C.dq_panels() * 64;
  const float* const g_block =
      p.dq_sum + at.place * C.dq_elements() + block * (C.kDqBlockBytes / 4);
  float sum[32] = {};
  if (seen) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t chunk[4];
      ptx::load_global(chunk, g_block + (i * 128 + threadIdx.x % 128) * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[4 * i + j] = __uint_as_float(chunk[j]);
    }
  }
  uint16_t* const g_first = first_row(p.dq, s.batch, at.head, int64_t{s.q_begin} + row);
  store_gradient<C.element>({g_first, p.dq.stride_s, s.q_slot - row, p.head_dim}, column, sum,
                            p.scale);
}

// The tiles' parts, always in the same order.
template <BackwardConfig C>
TW_DEVICE void finish_dsink(const BackwardParams& p, int head) {
  if (threadIdx.x >= 32) return;
  float sum = 0.0f;
  for (int batch = 0; batch < p.batch; ++batch) {
    const Sequence s = make_sequence<C>(p, batch);
    const float* const g_parts = p.dsink_parts + int64_t{head} * p.tiles + s.first_tile;
    for (int tile = threadIdx.x; tile * C.tile_q < s.q_slot; tile += 32) sum += g_parts[tile];
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) sum += ptx::shuffle_xor(sum, lanes);
  if (threadIdx.x == 0) p.dsink[head * p.dsink_stride] = sum;
}

template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void finish_kernel(const BackwardParams& p) {
  if (p.q_tiles == 0 || p.batch == 0) {  // a CTA for each head
    if (C.sink && threadIdx.x == 0) p.dsink[blockIdx.x * p.dsink_stride] = 0.0f;
    return;
  }
  const RowTile<C> at(p, blockIdx.x);
  ptx::wait_for_previous_kernel();
  if constexpr (C.sink)
    if (at.tile == 0 && at.sequence.batch == 0 && p.dsink) finish_dsink<C>(p, at.head);
  if (!at.exists()) return;
  const bool seen = !at.sequence.keys_of_tile(at.tile, C.tile_q).empty();
  for (int block = threadIdx.x / 128; block < C.dq_blocks(); block += C.kRowThreads / 128)
    finish_block<C>(p, at, block, seen);
}

}  // namespace tilewise::sm90::backward
