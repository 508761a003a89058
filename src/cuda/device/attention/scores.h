// What happens to a tile of scores between Q K^T and the softmax (docs/semantics.md): softcap,
// ALiBi, bias, mask. Each is there only if the config has it.
#pragma once

#include "cuda/device/attention/softmax.h"
#include "cuda/device/attention/work.h"

namespace tilewise::sm90 {

// Where a thread's scores lie: rows row, row + 8; columns 8 j + 2 quad_lane + {0, 1}.
struct Place {
  int row;        // inside the sequence
  int quad_lane;  // 0 ... 3

  TW_DEVICE int row_of(int i) const { return row + i / 2 % 2 * 8; }
  TW_DEVICE int column_of(int i) const { return i / 4 * 8 + quad_lane * 2 + i % 2; }
};

// c * tanh(s / c), by way of exp2: tanh(x) = 1 - 2 / (e^2x + 1). Good to 2^-22 of c; tanh.approx
// would cost one special function instead of two, at an error of 2^-11.
TW_DEVICE float softcap_log2(const ForwardParams& p, float s) {
  const float e = ptx::ex2(s * (2.0f * kLog2e) * p.scale_over_softcap);
  return p.softcap_log2 * (1.0f - 2.0f * ptx::rcp(e + 1.0f));
}

template <ForwardConfig C>
TW_DEVICE float bias_at(const ForwardParams& p, int64_t index) {
  if constexpr (C.bias == BiasType::kF32) return static_cast<const float*>(p.bias)[index];
  const uint16_t bits = static_cast<const uint16_t*>(p.bias)[index];
  return C.bias == BiasType::kBf16 ? ptx::bf16_to_f32(bits) : ptx::f16_to_f32(bits);
}

// Raw products to scores in units of log2.
template <ForwardConfig C, int kCount>
TW_DEVICE void modify_scores(const ForwardParams& p, const Work& w, Place at, int kv_row,
                             float (&s)[kCount]) {
  float slope = 0.0f;
  if constexpr (C.alibi)
    slope = kLog2e * p.alibi_slopes[w.batch * p.alibi_stride_b + w.head * p.alibi_stride_h];
  const int64_t bias_base = w.batch * p.bias_stride_b + w.head * p.bias_stride_h;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float x = C.softcap ? softcap_log2(p, s[i]) : s[i] * p.scale_log2;
    const int row = at.row_of(i), key = kv_row + at.column_of(i);
    if constexpr (C.alibi) {
      const int distance = key - row - w.diagonal;
      x -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
    if constexpr (C.bias != BiasType::kNone)
      if (row < w.seq_q && key < w.seq_kv)
        x += kLog2e * bias_at<C>(p, bias_base + row * p.bias_stride_q + key * p.bias_stride_kv);
    s[i] = x;
  }
}

// Hides the keys that the band or the end of the sequence cuts off.
template <ForwardConfig C, int kCount>
TW_DEVICE void apply_mask(const Work& w, Place at, int kv_row, float (&s)[kCount]) {
  int first[2], last[2];  // visible columns, counted from this thread's first
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row + 8 * r, column = kv_row + at.quad_lane * 2;
    last[r] = (C.band == Band::kFull ? w.seq_kv - 1 : min_of(row + w.hi, w.seq_kv - 1)) - column;
    first[r] = row + w.lo - column;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2, column = i / 4 * 8 + i % 2;
    const bool hidden = column > last[r] || (C.band == Band::kBoth && column < first[r]);
    s[i] = hidden ? kMinusInf : s[i];
  }
}

// Zeroes the probabilities that dropout takes. The row sum has been formed: LSE doesn't change.
template <ForwardConfig C, int kCount>
TW_DEVICE void drop(const ForwardParams& p, const Work& w, Place at, int kv_row,
                    float (&probabilities)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 8; ++j) {  // 16 x 16 blocks of the generator
    const Philox4 call = dropout_block(p.dropout_key, w.batch, w.head, at.row / 16, kv_row / 16 + j,
                                       at.row % 8 * 4 + at.quad_lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = dropout_bits(call, i / 2 % 2 * 8, i / 4 * 8 + i % 2);
      if (bits < p.dropout_threshold) probabilities[8 * j + i] = 0.0f;
    }
  }
}

}  // namespace tilewise::sm90
