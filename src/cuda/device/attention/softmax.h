// The online softmax on a WGMMA accumulator (ptx/wgmma.h): a thread holds parts of two rows, 8
// apart, and a row is spread over the 4 lanes of a quad.
//
// A row's state is `shift`, what is subtracted in units of log2 before exp2, and the thread's own
// part of the row sum; the four parts are added once, at the end. `shift` follows the running
// maximum lazily: only when that has grown by more than 8 does it move (and O get rescaled), so
// probabilities reach 2^8 at most, which neither float32 sums nor 16-bit P notice.
//
// A score becomes exp2(scale * s - shift) by one FMA, rounded once, so `shift` need not be the
// exact maximum: any float near it serves, as long as rescaling uses the same float. Its own
// spacing sets the limit: past |shift| = 2^28 the maximum may lie so far above it that P overflows
// fp16.
#pragma once

#include "core/softmax_state.h"
#include "cuda/device/attention/exp2.h"
#include "cuda/device/ptx/sync.h"

namespace tilewise {

// Whether a tile's scores may hold -inf, and so a row that has seen nothing yet.
enum class Scores { kAllVisible, kMayBeHidden };

struct RowPair {
  float shift[2];
  float sum[2];

  TW_DEVICE void reset() {
    shift[0] = shift[1] = kMinusInf;
    sum[0] = sum[1] = 0.0f;
  }
};

TW_DEVICE float quad_sum(float x) {
  x += ptx::shuffle_xor(x, 1);
  return x + ptx::shuffle_xor(x, 2);
}

TW_DEVICE int quad_max(int x) {
  x = max_of(x, ptx::shuffle_xor(x, 1));
  return max_of(x, ptx::shuffle_xor(x, 2));
}

// The largest of row r's scores as bits, `flip` applied to each. Two chains, since one would wait
// for itself.
template <int kCount>
TW_DEVICE int row_max_bits(const float (&s)[kCount], int r, int flip) {
  int top[2] = {__float_as_int(s[2 * r]) ^ flip, __float_as_int(s[4 + 2 * r]) ^ flip};
#pragma unroll
  for (int i = 0; i < kCount; i += 4)
    top[i / 4 % 2] = max_of(max_of(top[i / 4 % 2], __float_as_int(s[i + 2 * r]) ^ flip),
                            __float_as_int(s[i + 2 * r + 1]) ^ flip);
  return quad_max(max_of(top[0], top[1]));
}

// The maxima of the two rows over one tile, taken on the bits as signed integers: Hopper has a
// three-way integer maximum, which halves the instructions. That order is right as soon as one
// score of the row is positive; among negative numbers it is reversed, so rows without a positive
// score are done again with the bits flipped.
template <int kCount>
TW_DEVICE void row_maxima(const float (&s)[kCount], float (&top)[2]) {
  int bits[2] = {row_max_bits(s, 0, 0), row_max_bits(s, 1, 0)};
  if (ptx::warp_any(bits[0] < 0 || bits[1] < 0)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int flipped = ~row_max_bits(s, r, -1);
      if (bits[r] < 0) bits[r] = flipped;
    }
  }
  top[0] = __int_as_float(bits[0]);
  top[1] = __int_as_float(bits[1]);
}

// Moves the shifts for maxima `top` (score units; scale > 0 brings them to log2). factor[r] is what
// row r's earlier sum and O must be multiplied with.
TW_DEVICE void move_shift(RowPair& rows, const float (&top)[2], float scale, float (&factor)[2]) {
  constexpr float kLazy = 8.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float wanted = top[r] * scale, old = rows.shift[r];
    const bool grown = wanted > old + kLazy;  // from -inf: any finite score
    rows.shift[r] = grown ? wanted : old;
    factor[r] = grown ? ptx::ex2(old - wanted) : 1.0f;
    rows.sum[r] *= factor[r];
  }
}

// s becomes exp2(scale * s - shift), and is added up.
template <Scores kScores, int kPolynomialOf8, int kCount>
TW_DEVICE void exponentiate(float (&s)[kCount], RowPair& rows, float scale) {
  const float shift[2] = {
      kScores == Scores::kMayBeHidden ? softmax_shift(rows.shift[0]) : rows.shift[0],
      kScores == Scores::kMayBeHidden ? softmax_shift(rows.shift[1]) : rows.shift[1]};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    const float x = fmaf(s[i], scale, -shift[r]);
    // Spread evenly, so that both units always have work.
    const bool polynomial =
        kScores == Scores::kAllVisible && (i + 1) * kPolynomialOf8 / 8 > i * kPolynomialOf8 / 8;
    s[i] = polynomial ? exp2_polynomial(x) : ptx::ex2(x);
    rows.sum[r] += s[i];
  }
}

}  // namespace tilewise
