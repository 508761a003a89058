// An additive bias.
#pragma once

#include "cuda/device/attention/scores.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
TW_DEVICE float bias_value(const void* values, int64_t index) {
  if constexpr (C.bias == BiasType::kF32) return static_cast<const float*>(values)[index];
  const uint16_t bits = static_cast<const uint16_t*>(values)[index];
  return C.bias == BiasType::kBf16 ? ptx::bf16_to_f32(bits) : ptx::f16_to_f32(bits);
}

// Where the bias of a thread's row r begins. Queries off the end read the last one's: they will
// not be stored.
TW_DEVICE int64_t bias_row(const ForwardParams& p, const Work& w, Place at, int r) {
  return w.batch * p.bias_stride_b + (w.head + at.head[r]) * p.bias_stride_h +
         min_of(at.row[r], p.seq_q - 1) * p.bias_stride_q;
}

// A thread's share of a tile of bias, loaded while the products that it joins are in flight, two
// neighbouring keys at once. Keys off the end read the last pair's: their scores will be hidden.
template <ForwardConfig C>
struct BiasTile {
  static constexpr int kCount = C.tile_kv / 2;
  static constexpr bool kIsF32 = C.bias == BiasType::kF32;
  uint32_t word[kIsF32 ? kCount : kCount / 2];

  TW_DEVICE void load(const ForwardParams& p, const Work& w, Place at, int kv_row) {
    struct alignas(8) Two {
      uint32_t first, second;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = bias_row(p, w, at, r);
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
        const int64_t index = row + min_of(kv_row + at.column_of(i), p.seq_kv - 2);
        if constexpr (kIsF32) {
          const Two two = *reinterpret_cast<const Two*>(static_cast<const float*>(p.bias) + index);
          word[i] = two.first;
          word[i + 1] = two.second;
        } else {
          const auto* const values = static_cast<const uint16_t*>(p.bias);
          word[i / 2] = *reinterpret_cast<const uint32_t*>(values + index);
        }
      }
    }
  }

  TW_DEVICE void add_to(float (&s)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = fmaf(value(i), kLog2e, s[i]);
  }

 private:
  TW_DEVICE float value(int i) const {
    if constexpr (kIsF32) return __uint_as_float(word[i]);
    const uint16_t bits = static_cast<uint16_t>(word[i / 2] >> i % 2 * 16);
    return C.bias == BiasType::kBf16 ? ptx::bf16_to_f32(bits) : ptx::f16_to_f32(bits);
  }
};

// The same for any strides, loaded where it is added: a tile of addresses would not fit the
// registers.
template <ForwardConfig C, int kCount>
TW_DEVICE void add_strided_bias(const ForwardParams& p, const Work& w, Place at, int kv_row,
                                float (&s)[kCount]) {
  // One row after the other where registers are shortest, else a block of both after the other.
  constexpr bool kRowByRow = C.head_dim_v > 192;
  constexpr int kHalf = kCount / 2;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const int i = kRowByRow ? n % kHalf / 2 * 4 + n / kHalf * 2 + n % 2 : n;
    const int key = kv_row + at.column_of(i);
    if (key < w.seq_kv)
      s[i] +=
          kLog2e * bias_value<C>(p.bias, bias_row(p, w, at, i / 2 % 2) + key * p.bias_stride_kv);
  }
}

}  // namespace tilewise::sm90
