// The run-time arguments of the kernels of the Hopper backward. Read by the host and by the
// device; what a config leaves out is not touched.
#pragma once

#include "core/philox.h"
#include "cuda/device/tensor_map.h"

namespace tilewise::sm90 {

// A (B, S, H, D) or packed (total, H, D) tensor, the last dimension contiguous; strides in
// elements, b = 0 when packed.
struct RowTensor {
  void* data;
  int64_t stride_b, stride_s, stride_h;
};

// (B, Hq, Sq) or (Hq, total_q), float32.
struct StatTensor {
  const float* data;
  int64_t stride_b, stride_h, stride_s;
};

// (B, Hq, Sq, Sk), float32; a dimension in which the bias is broadcast is summed over and has
// stride 0.
struct BiasGradientTensor {
  float* data;
  int64_t stride_b, stride_h, stride_q, stride_kv;
  bool sums_batch, sums_heads, sums_q, sums_kv;
};

struct BackwardParams {
  TensorMap q;    // (D, Sq, Hq, B) or packed (D, total_q, Hq, 1); a box is 64 columns x tile_q rows
  TensorMap d_o;  // (Dv, Sq, Hq, B)
  TensorMap k;    // (D, Sk, Hkv, B); a box is 64 columns x tile_kv rows
  TensorMap v;    // (Dv, Sk, Hkv, B)

  RowTensor o, d_o_rows;         // (B, Sq, Hq, Dv)
  RowTensor dq;                  // (B, Sq, Hq, D)
  RowTensor dk, dv;              // (B, Sk, Hkv, D), (B, Sk, Hkv, Dv)
  StatTensor lse, d_lse;         // d_lse.data null: not given
  int32_t head_dim, head_dim_v;  // as stored; the config's may be rounded up

  // The workspace. A tile is tile_q rows of one sequence and head.
  float* stats;          // (Hq, tiles, 2, tile_q): LSE in log2 units, delta
  float* dq_sum;         // (Hq, tiles, tile_q * D), as the accumulators lie (backward_finish.h)
  int32_t* turns;        // (Hq, tiles, rounds): how many key tiles have added their part
  float* dsink_parts;    // (Hq, tiles)
  int32_t* far_tiles;    // (Hq, tiles): whether they hold a row to be replayed
  int32_t* items_taken;  // one counter
  int32_t tiles;         // of all sequences

  // The grid of work items.
  int32_t batch, heads_q, heads_kv, heads_per_kv;
  int32_t q_tiles;        // of the longest sequence
  int32_t kv_tiles;       // likewise
  int32_t work_items;     // kv_tiles * heads_kv * batch
  int32_t section_heads;  // longest first: kv heads that are worked on at once

  // The band (core/mask.h) is made for each sequence.
  int32_t seq_q, seq_kv;
  int64_t left, right;  // -1: unbounded; causal is right = 0
  bool bottom_right;

  float scale, scale_log2;   // scale_log2 = scale * log2(e)
  float softcap_log2;        // c * log2(e)
  float scale_over_softcap;  // scale / c

  const float* alibi_slopes;  // (Hq) or (B, Hq), any strides
  int64_t alibi_stride_b, alibi_stride_h;
  const void* bias;  // (B, Hq, Sq, Sk); a broadcast dimension has stride 0
  int64_t bias_stride_b, bias_stride_h, bias_stride_q, bias_stride_kv;
  BiasGradientTensor dbias;  // data null: not asked for
  const float* sink;         // (Hq)
  int64_t sink_stride;
  float* dsink;  // (Hq); null: not asked for
  int64_t dsink_stride;
  PhiloxKey dropout_key;
  uint32_t dropout_threshold;
  float dropout_scale;

  const int32_t* cu_seqlens_q;  // (B + 1) or null
  const int32_t* cu_seqlens_kv;
  const int32_t* seqused_q;  // (B) or null
  const int32_t* seqused_kv;
};

}  // namespace tilewise::sm90
