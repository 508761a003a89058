// From a tile's products to exponents of two, one by one, in the shadow of the exponentials.
//
// For plain scores that is one FMA: scale * s - shift. What is done to scores can be done there as
// well, where issue slots are free, rather than before the maxima, where everybody waits:
//   softcap  since tanh grows with its argument, maxima of products tell those of scores;
//   ALiBi    they bound those of scores. Only where that is not good enough (a row has grown, or
//   the
//            tile lies across ALiBi's diagonal) are scores made first, and nothing is left to add.
#pragma once

#include "cuda/device/attention/besides.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Exponents {
  static constexpr int kCount = C.tile_kv / 2;
  float scale;                         // to units of log2
  float shift[2];                      // what the rows have subtracted, in these units
  float inverse = 0.0f;                // softcap: scale / c
  bool bounded = true;                 // products tell enough of scores
  float slope[2] = {}, first[2] = {};  // ALiBi: slope * (first + column), in these units

  TW_DEVICE Exponents(const ForwardParams& p, const RowPair& rows)
      : scale(score_scale<C>(p)), inverse(p.scale_over_softcap) {
    for (int r = 0; r < 2; ++r) shift[r] = rows.top[r] * scale;
  }

  // ALiBi takes slope * |key - query| off: a line, as long as the tile's keys lie on one side.
  TW_DEVICE void lay_line(const ForwardParams& p, const Work& w, Place at, int kv_row,
                          const Besides<C>& besides) {
    const int on_diagonal = w.q_row + w.diagonal;
    const bool left = w.hi <= w.diagonal || kv_row + C.tile_kv - 1 <= on_diagonal;
    const bool right = kv_row >= on_diagonal + C.tile_queries() - 1;
    bounded = left || right;
    scale = p.scale_log2;
    for (int r = 0; r < 2; ++r) {
      slope[r] = left ? besides.slope[r] : -besides.slope[r];
      first[r] = static_cast<float>(kv_row + at.quad_lane * 2 - at.row[r] - w.diagonal);
    }
  }

  // Whether they will do as they are: no row's maximum has grown by more than shifts allow for, and
  // none is far. Of this thread's own scores; rows whose limit is negative, and with it, maybe, all
  // scores (max_bits), never will.
  TW_DEVICE bool suffice(const float (&s)[kCount]) const {
    int top[2];
    max_bits(s, 0, top);
    bool good = bounded;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float limit = shift[r] + kLazy - largest_on_line(r);
      good &= score(__int_as_float(top[r])) * scale <= (limit < 0.0f ? kMinusInf : limit);
      good &= !is_far(shift[r]);
    }
    return good;
  }

  // A product's score, as far as that is left to this.
  TW_DEVICE float score(float s) const {
    return C.defers_softcap() ? cap<C>(inverse, s) : s;
  }

  // Folds into the shifts what all of a row's exponents have added. Before the first of them.
  TW_DEVICE void prepare(Scores scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (scores == Scores::kMayBeHidden) shift[r] = softmax_shift(shift[r]);
      if constexpr (C.defers_alibi()) shift[r] = fmaf(-slope[r], first[r], shift[r]);
    }
  }

  template <Scores kScores>
  TW_DEVICE float exponent(float s, int i) const {
    const int r = i / 2 % 2;
    if constexpr (C.defers_alibi())
      return fmaf(s, scale, fmaf(slope[r], static_cast<float>(i / 4 * 8 + i % 2), -shift[r]));
    const float x = fmaf(score(s), scale, -shift[r]);
    // tanh would make a number of what is hidden.
    return C.defers_softcap() && kScores == Scores::kMayBeHidden && s == kMinusInf ? s : x;
  }

 private:
  TW_DEVICE float largest_on_line(int r) const {
    if constexpr (!C.defers_alibi()) return 0.0f;
    constexpr float kLast = kCount / 4 * 8 - 7;
    return slope[r] * (slope[r] > 0.0f ? first[r] + kLast : first[r]);
  }
};

}  // namespace tilewise::sm90
