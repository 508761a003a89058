// The run-time arguments of the Hopper forward kernel. Read by the host and by the device; what a
// config leaves out is not touched.
#pragma once

#include "core/philox.h"
#include "cuda/device/tensor_map.h"

namespace tilewise::sm90 {

struct ForwardParams {
  // (D, Sq, Hq, B) or packed (D, total_q, Hq, 1); a box is 64 columns x tile_q rows. With packed
  // heads (D, Hq, Sq, B); a box is 64 columns x packed heads x tile_queries.
  TensorMap q;
  TensorMap k;  // (D, Sk, Hkv, B); a box is 64 columns x tile_kv rows
  TensorMap v;  // (Dv, Sk, Hkv, B)

  void* o;  // (B, Sq, Hq, Dv); strides in elements, multiples of 8
  int64_t o_stride_b, o_stride_s, o_stride_h;
  float* lse;  // (B, Hq, Sq) or (Hq, total_q); null: not asked for
  int64_t lse_stride_b, lse_stride_h, lse_stride_s;
  int32_t head_dim_v;  // as stored; the config's may be rounded up

  // The grid of work items.
  int32_t batch, heads_q, heads_per_kv;
  int32_t q_tiles;        // for each head, or each pack of them; of all packed sequences
  int32_t work_items;     // q_tiles * packs * batch, or without the batch if sequences are packed
  int32_t section_heads;  // longest first: packs whose K and V share L2

  // The band (core/mask.h) is made for each sequence.
  int32_t seq_q, seq_kv;
  int64_t left, right;  // -1: unbounded; causal is right = 0
  bool bottom_right;

  float scale_log2;          // scale * log2(e)
  float softcap_log2;        // c * log2(e)
  float scale_over_softcap;  // scale / c

  const float* alibi_slopes;  // (Hq) or (B, Hq), any strides
  int64_t alibi_stride_b, alibi_stride_h;
  const void* bias;  // (B, Hq, Sq, Sk); a broadcast dimension has stride 0
  int64_t bias_stride_b, bias_stride_h, bias_stride_q, bias_stride_kv;
  const float* sink;  // (Hq)
  int64_t sink_stride;
  PhiloxKey dropout_key;
  uint32_t dropout_threshold;
  float dropout_scale;

  const int32_t* cu_seqlens_q;  // (B + 1) or null
  const int32_t* cu_seqlens_kv;
  const int32_t* seqused_q;  // (B) or null
  const int32_t* seqused_kv;
};

}  // namespace tilewise::sm90
