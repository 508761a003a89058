// From unnormalized O and the row state to O and LSE in global memory.
//
// O leaves through registers, not through shared memory and TMA: four lanes of a quad exchange
// their pairs so that each holds 8 neighbouring columns, 16 bytes, and a row's 64 bytes go out as
// whole sectors. That needs no buffer, no fence and no wait before the next tile, takes any
// strides, and can stop at the end of a packed sequence, where a TMA box could not.
#pragma once

#include "cuda/device/attention/besides.h"
#include "cuda/device/ptx/global.h"
#include "cuda/device/tile/quad.h"

namespace tilewise::sm90 {

// Adds the parts of each row sum and the sink. scale[r] normalizes O; lse2[r] is in log2 units.
template <ForwardConfig C>
TW_DEVICE void finish_rows(const ForwardParams& p, const Work& w, Place at, const RowPair& rows,
                           float (&scale)[2], float (&lse2)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(rows.sum[r]);
    scale[r] = sum == 0.0f ? 0.0f : ptx::rcp(sum);
    lse2[r] = sum == 0.0f ? kMinusInf : fmaf(rows.top[r], score_scale<C>(p), ptx::lg2(sum));
    if constexpr (C.sink) {
      // exp(sink) joins the denominator: O shrinks by exp(LSE - LSE with the sink).
      const float sink2 = kLog2e * p.sink[(w.head + at.head[r]) * p.sink_stride];
      const float top = fmaxf(sink2, lse2[r]), before = lse2[r];
      if (top != kMinusInf)
        lse2[r] = top + ptx::lg2(ptx::ex2(before - top) + ptx::ex2(sink2 - top));
      if (before != kMinusInf) scale[r] *= ptx::ex2(before - lse2[r]);
    }
    if constexpr (C.dropout) scale[r] *= p.dropout_scale;
  }
}

// Rows past a sequence's used length are computed from whatever lies there and written as nothing:
// O = 0, LSE = -inf, with a sink too.
template <ForwardConfig C, int kCount>
TW_DEVICE void store_output(const ForwardParams& p, const Work& w, Place at,
                            const float (&o)[kCount], const float (&scale)[2]) {
  constexpr int kBlocks = kCount / 4;  // of 8 columns
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row[r];
    uint16_t* const g_row =
        w.g_o + (row - w.q_row) * p.o_stride_s + at.head[r] * p.o_stride_h + at.quad_lane * 8;
#pragma unroll
    for (int b = 0; b < kBlocks; b += 4) {
      uint32_t pair[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (b + j < kBlocks)
          pair[j] = ptx::pack<C.element>(o[4 * (b + j) + 2 * r] * scale[r],
                                         o[4 * (b + j) + 2 * r + 1] * scale[r]);
      tile::transpose_quad(pair, at.quad_lane);
      if (C.varlen && row >= w.seq_q) pair[0] = pair[1] = pair[2] = pair[3] = 0;
      if (row < w.q_slot && (b + at.quad_lane) * 8 < p.head_dim_v)
        ptx::store_global(g_row + b * 8, pair);
    }
  }
}

template <ForwardConfig C>
TW_DEVICE void store_lse(const ForwardParams& p, const Work& w, Place at, const float (&lse2)[2]) {
  if (p.lse == nullptr || at.quad_lane != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row[r];
    const bool used = !C.varlen || row < w.seq_q;
    if (row < w.q_slot)
      ptx::store_global(w.g_lse + (row - w.q_row) * p.lse_stride_s + at.head[r] * p.lse_stride_h,
                        used ? lse2[r] * kLn2 : kMinusInf);
  }
}

// Rows that see no key: O = 0, LSE = -inf, or the sink alone.
template <ForwardConfig C>
TW_DEVICE void store_unseen(const ForwardParams& p, const Work& w, Place at) {
  const RowPair nothing{{kMinusInf, kMinusInf}, {0.0f, 0.0f}};
  const float o[C.head_dim_v / 2] = {};
  float scale[2], lse2[2];
  finish_rows<C>(p, w, at, nothing, scale, lse2);
  store_lse<C>(p, w, at, lse2);
  store_output<C>(p, w, at, o, scale);
}

}  // namespace tilewise::sm90
