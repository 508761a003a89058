// A tile of scores in a thread's registers: where they lie, softcap, ALiBi and the mask.
#pragma once

#include "cuda/device/attention/softmax.h"
#include "cuda/device/attention/work.h"

namespace tilewise::sm90 {

// Where a thread's scores lie: two rows of the tile, 8 apart; columns 8 j + 2 quad_lane + {0, 1}.
struct Place {
  int row[2];     // queries, inside the sequence
  int head[2];    // from the work's first
  int quad_lane;  // 0 ... 3

  TW_DEVICE int row_of(int i) const { return row[i / 2 % 2]; }
  TW_DEVICE int column_of(int i) const { return i / 4 * 8 + quad_lane * 2 + i % 2; }
};

// `tile_row` is the first of the two, counted in the tile. A row that belongs to no query is one
// beyond every sequence.
template <ForwardConfig C>
TW_DEVICE Place place_of(const Work& w, int tile_row, int quad_lane) {
  constexpr int kBeyond = 1 << 29, kHeads = C.packed_heads;
  Place at;
  at.quad_lane = quad_lane;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = tile_row + 8 * r;
    const bool empty = C.tile_q % kHeads != 0 && row >= C.tile_queries() * kHeads;
    at.row[r] = empty ? kBeyond : w.q_row + row / kHeads;
    at.head[r] = row % kHeads;
  }
  return at;
}

// tanh(x) for |x| up to kSmallTanh, as x + x^3 p(x^2): minimax, 1.5e-8 of the value.
inline constexpr float kSmallTanh = 0.5f;
TW_DEVICE float small_tanh(float x) {
  const float y = x * x;
  float p = fmaf(y, 0.0172414910f, -0.0530454926f);
  p = fmaf(p, y, 0.133258790f);
  p = fmaf(p, y, -0.333331436f);
  return fmaf(x * y, p, x);
}

// s becomes tanh(s * inverse), inverse = scale / c. Caps are made to be far from most scores. Where
// one of the warp's is not small, tanh(x) = 1 - 2 / (e^2x + 1), good to 2^-22. (The instruction for
// tanh is good to 2^-11, which LSE shows.)
template <int kCount>
TW_DEVICE void cap_scores(float inverse, float (&s)[kCount]) {
  int most = 0;  // of the squares, as bits
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    s[i] *= inverse;
    s[i + 1] *= inverse;
    most = max_of(max_of(most, __float_as_int(s[i] * s[i])), __float_as_int(s[i + 1] * s[i + 1]));
  }
  if (ptx::warp_any(__int_as_float(most) > kSmallTanh * kSmallTanh)) {
    for (float& x : s) x = 1.0f - 2.0f * ptx::rcp(ptx::ex2(x * (2.0f * kLog2e)) + 1.0f);
  } else {
    for (float& x : s) x = small_tanh(x);
  }
}

// ALiBi's slopes of the two rows, in units of log2 for each key.
TW_DEVICE void load_slopes(const ForwardParams& p, const Work& w, Place at, float (&slope)[2]) {
  for (int r = 0; r < 2; ++r)
    slope[r] =
        kLog2e *
        p.alibi_slopes[w.batch * p.alibi_stride_b + (w.head + at.head[r]) * p.alibi_stride_h];
}

// Takes ALiBi's share off scores in units of log2. Positions are exact in float32 up to 2^24.
template <ForwardConfig C, int kCount>
TW_DEVICE void subtract_distances(const Work& w, Place at, int kv_row, const float (&slope)[2],
                                  float (&s)[kCount]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float first =
        static_cast<float>(kv_row + at.quad_lane * 2 - at.row[r] - w.diagonal);  // key - query
#pragma unroll
    for (int i = 2 * r; i < kCount; i += i % 2 ? 3 : 1) {
      const float distance = first + static_cast<float>(i / 4 * 8 + i % 2);
      s[i] = fmaf(-slope[r], fabsf(distance), s[i]);
    }
  }
}

// Bit i of a row's 32 stands for its i-th column in this thread: 8 * (i / 2) + i % 2. The bits of
// the columns up to `last`, of 32 blocks of 8 columns counted from this thread's first.
TW_DEVICE uint32_t bits_up_to(int last) {
  const int count = last < 0 ? 0 : last / 8 * 2 + min_of(last % 8, 1) + 1;
  return ptx::low_bits(count);
}

// Hides the keys that the band or the end of the sequence cuts off. The visible columns are made
// bits first: their tests are moves to predicates, seven at a time, not a comparison each.
template <ForwardConfig C, int kCount>
TW_DEVICE void apply_mask(const Work& w, Place at, int kv_row, float (&s)[kCount]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row[r], column = kv_row + at.quad_lane * 2;
    const int last =
        (C.band == Band::kFull ? w.seq_kv - 1 : min_of(row + w.hi, w.seq_kv - 1)) - column;
    const int first = row + w.lo - column;
#pragma unroll
    for (int part = 0; part < kCount; part += 64) {  // 32 columns of both rows
      uint32_t visible = bits_up_to(last - part * 2);
      if constexpr (C.band == Band::kBoth) visible &= ~bits_up_to(first - 1 - part * 2);
#pragma unroll
      for (int bit = 0; bit < 32; ++bit) {
        const int i = part + bit / 2 * 4 + 2 * r + bit % 2;
        if (i < kCount) s[i] = visible >> bit & 1 ? s[i] : kMinusInf;
      }
    }
  }
}

}  // namespace tilewise::sm90
