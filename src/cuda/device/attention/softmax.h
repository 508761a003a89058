// The online softmax on a WGMMA accumulator (ptx/wgmma.h): a thread holds parts of two rows, 8
// apart, and a row is spread over the 4 lanes of a quad.
//
// A row's state is `top`, the score that is subtracted before exp2, and the thread's own part of
// the row sum; the four parts are added once, at the end. `top` follows the running maximum lazily:
// only when that has grown by more than 8 in units of log2 does it move (and O get rescaled), so
// probabilities reach 2^8 at most, which neither float32 sums nor 16-bit P notice.
//
// A score becomes exp2(scale * s - shift) by one FMA, where shift = scale * top. Rows so far from 0
// that the spacing of such floats shows in 16 bits (is_far) have their top taken off exactly, and
// moved at once, in the same rare branch that moves other rows' tops: their largest probability is
// then 1, and ties stay ties, however large the scores.
#pragma once

#include "core/softmax_state.h"
#include "cuda/device/attention/exp2.h"
#include "cuda/device/ptx/math.h"
#include "cuda/device/ptx/sync.h"

namespace tilewise {

// Whether a tile's scores may hold -inf, and so a row that has seen nothing yet.
enum class Scores { kAllVisible, kMayBeHidden };

struct RowPair {
  float top[2];
  float sum[2];
};

TW_DEVICE float quad_sum(float x) {
  x += ptx::shuffle_xor(x, 1);
  return x + ptx::shuffle_xor(x, 2);
}

TW_DEVICE int quad_max(int x) {
  x = max_of(x, ptx::shuffle_xor(x, 1));
  return max_of(x, ptx::shuffle_xor(x, 2));
}

// The thread's own maxima of its two rows, on the bits as signed integers: Hopper has a three-way
// integer maximum, which halves the instructions. Four chains, since one would wait for itself.
// `flip` is applied to the bits. That order is right as soon as one score of the row is positive;
// among negative numbers it is reversed.
template <int kCount>
TW_DEVICE void max_bits(const float (&s)[kCount], int flip, int (&top)[2]) {
  int chain[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    chain[i % 2][i / 2] = __float_as_int(s[4 * (i / 2) + 2 * (i % 2)]) ^ flip;
#pragma unroll
  for (int i = 0; i < kCount; i += 4)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int& of = chain[r][i / 4 % 2];
      of = max_of(max_of(of, __float_as_int(s[i + 2 * r]) ^ flip),
                  __float_as_int(s[i + 2 * r + 1]) ^ flip);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = max_of(chain[r][0], chain[r][1]);
}

// The maxima of the two rows over one tile.
template <int kCount>
TW_DEVICE void row_maxima(const float (&s)[kCount], float (&top)[2]) {
  int bits[2], flipped[2];
  max_bits(s, 0, bits);
  max_bits(s, -1, flipped);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int positive = quad_max(bits[r]), negative = ~quad_max(flipped[r]);
    top[r] = __int_as_float(positive < 0 ? negative : positive);
  }
}

inline constexpr float kLazy = 8.0f;

// Whether the float32 spacing of `shift`, 2^-13 and more, may show in a probability.
TW_DEVICE bool is_far(float shift) {
  constexpr float kFar = 1024.0f, kInf = -kMinusInf;
  return fabsf(shift) >= kFar && fabsf(shift) < kInf;
}

// Lets a row's top follow `seen`, a tile's maximum, if it has to, and the row's sum with it.
// Returns what the row's O must be multiplied with.
TW_DEVICE float move_top(RowPair& rows, int r, float seen, float scale) {
  const float old = rows.top[r];
  const bool far = is_far(old * scale) || is_far(seen * scale);
  if (!(far ? seen > old : seen * scale > old * scale + kLazy)) return 1.0f;
  const float factor = ptx::ex2((old - seen) * scale);
  rows.top[r] = seen;
  rows.sum[r] *= factor;
  return factor;
}

// Takes the tops of far rows off their scores; nothing is left to subtract.
template <int kCount>
TW_DEVICE void take_off_far(float (&s)[kCount], const float (&top)[2], float (&shift)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float off = is_far(shift[r]) ? top[r] : 0.0f;
    if (off != 0.0f) shift[r] = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kCount; i += i % 2 ? 3 : 1) s[i] -= off;
  }
}

// s becomes exp2 of its exponent, and is added up in `sum`.
template <Scores kScores, int kPolynomialOf8, int kCount, class Exponents>
TW_DEVICE void exponentiate(float (&s)[kCount], const Exponents& exponents, float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float x = exponents(s[i], i);
    // Spread evenly, so that both units always have work.
    const bool polynomial =
        kScores == Scores::kAllVisible && (i + 1) * kPolynomialOf8 / 8 > i * kPolynomialOf8 / 8;
    s[i] = polynomial ? exp2_polynomial(x) : ptx::ex2(x);
    sum[i / 2 % 2] += s[i];
  }
}

}  // namespace tilewise
