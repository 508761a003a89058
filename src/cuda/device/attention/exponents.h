// From a tile's products to exponents of two, one by one, in the shadow of the exponentials.
//
// For plain scores that is one FMA: scale * s - shift. ALiBi's distances can be had there as well,
// where issue slots are free, rather than before the maxima, where everybody waits: the maxima of
// bare products bound those of the scores. Only where that bound is not good enough (a row has
// grown, or the tile lies across ALiBi's diagonal) are scores made first (Besides::modify), and
// nothing is left to be added here.
#pragma once

#include "cuda/device/attention/besides.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Exponents {
  static constexpr int kCount = C.tile_kv / 2;
  float scale;                         // to units of log2
  float shift[2];                      // what the rows have subtracted, in these units
  bool bounded = true;                 // products tell enough of scores
  float slope[2] = {}, first[2] = {};  // ALiBi: slope * (first + column), in these units

  TW_DEVICE Exponents(const ForwardParams& p, const RowPair& rows) : scale(score_scale<C>(p)) {
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
  // none is far. Of this thread's own scores. Rows whose limit is negative, and with it, maybe, all
  // scores (max_bits: the greatest then looks like the least, or like a hidden one), never will,
  // nor rows that have seen nothing yet.
  TW_DEVICE bool suffice(const float (&s)[kCount]) const {
    int top[2];
    max_bits(s, 0, top);
    bool good = bounded;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float limit = shift[r] + kLazy - largest_on_line(r);
      good &= limit >= 0.0f && __int_as_float(top[r]) * scale <= limit;
      good &= !is_far(shift[r]);
    }
    return good;
  }

  // Folds into the shifts what all of a row's exponents have added. Before the first of them.
  TW_DEVICE void prepare(Scores scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (scores == Scores::kMayBeHidden) shift[r] = softmax_shift(shift[r]);
      if constexpr (C.defers_alibi()) shift[r] = fmaf(-slope[r], first[r], shift[r]);
    }
  }

  TW_DEVICE float operator()(float s, int i) const {
    const int r = i / 2 % 2;
    if constexpr (C.defers_alibi())
      return fmaf(s, scale, fmaf(slope[r], static_cast<float>(i / 4 * 8 + i % 2), -shift[r]));
    return fmaf(s, scale, -shift[r]);
  }

 private:
  TW_DEVICE float largest_on_line(int r) const {
    if constexpr (!C.defers_alibi()) return 0.0f;
    constexpr float kLast = kCount / 4 * 8 - 7;
    return slope[r] * (slope[r] > 0.0f ? first[r] + kLast : first[r]);
  }
};

}  // namespace tilewise::sm90
