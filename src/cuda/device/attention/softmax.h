// The online softmax on a WGMMA accumulator (ptx/wgmma.h): a thread holds parts of two rows, 8
// apart, and a row is spread over the 4 lanes of a quad.
//
// A row's state is `shift`, what is subtracted in units of log2 before exp2, and the thread's own
// part of the row sum; the four parts are added once, at the end. `shift` follows the running
// maximum lazily: only when that has grown by more than 8 does it move (and O get rescaled), so
// probabilities reach 2^8 at most, which neither float32 sums nor 16-bit P notice.
//
// A score becomes exp2(scale * s - shift) by one FMA, rounded once, so `shift` need not be the
// exact maximum: any float near it serves, as long as rescaling uses the same float. Where the
// spacing of such floats shows in 16 bits, rows are far (is_far).
#pragma once

#include "core/softmax_state.h"
#include "cuda/device/attention/exp2.h"
#include "cuda/device/ptx/mma.h"
#include "cuda/device/ptx/sync.h"

namespace tilewise {

// Whether a tile's scores may hold -inf, and so a row that has seen nothing yet.
enum class Scores { kAllVisible, kMayBeHidden };

struct RowPair {
  float shift[2];
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

// What a row's shift would be for its maximum `top` (score units; scale > 0 brings it to log2),
// never above it.
TW_DEVICE float wanted_shift(float top, float scale) {
  return ptx::multiply_down(top, scale);
}

// Whether the shift has to move: from -inf at any finite score.
TW_DEVICE bool has_grown(float wanted, float shift) {
  constexpr float kLazy = 8.0f;
  return wanted > shift + kLazy;
}

// Moves a shift, and its row's sum with it. Returns what the row's O must be multiplied with.
TW_DEVICE float move_shift(RowPair& rows, int r, float wanted) {
  const float old = rows.shift[r];
  if (!has_grown(wanted, old)) return 1.0f;
  const float factor = ptx::ex2(old - wanted);
  rows.shift[r] = wanted;
  rows.sum[r] *= factor;
  return factor;
}

// s becomes exp2(scale * s - shift), and is added up in `sum`.
template <Scores kScores, int kPolynomialOf8, int kCount>
TW_DEVICE void exponentiate(float (&s)[kCount], const float (&shift)[2], float scale,
                            float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    const float x = fmaf(s[i], scale, -shift[r]);
    // Spread evenly, so that both units always have work.
    const bool polynomial =
        kScores == Scores::kAllVisible && (i + 1) * kPolynomialOf8 / 8 > i * kPolynomialOf8 / 8;
    s[i] = polynomial ? exp2_polynomial(x) : ptx::ex2(x);
    sum[r] += s[i];
  }
}

// Rows so far from 0 that the float32 spacing of `shift` shows in their probabilities: there the
// largest is not 1 but 2^x with 0 <= x < spacing.
TW_DEVICE bool is_far(float shift) {
  constexpr float kFar = 1024.0f;  // where the spacing is 2^-13
  return fabsf(shift) >= kFar;
}

// For far rows: probabilities as rounded to A operands, none above 2^15, and their sum. O and sum
// then hold the same numbers, so x cancels, however large it is. A product with ones adds them up:
// a twentieth of the code, which lies in the way of every step.
template <Element kElement, int kSteps>
TW_DEVICE void sum_rounded(uint32_t (&probabilities)[kSteps][4], float (&sum)[2]) {
  constexpr bool kBf16 = kElement == Element::kBf16;
  constexpr uint32_t kCap = kBf16 ? 0x47004700u : 0x78007800u;  // 2^15, twice
  constexpr uint32_t kOnes = kBf16 ? 0x3F803F80u : 0x3C003C00u;
  float sums[4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (uint32_t& pair : probabilities[step]) pair = ptx::min_pair<kElement>(pair, kCap);
    ptx::mma_m16n8k16<kElement>(sums, probabilities[step], {kOnes, kOnes});
  }
  // Each lane of the quad has the sum of the whole row, and they will be added.
  sum[0] = 0.25f * sums[0];
  sum[1] = 0.25f * sums[2];
}

}  // namespace tilewise
