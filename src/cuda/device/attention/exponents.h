// From a tile's products to exponents of two, one by one, in the shadow of the exponentials.
//
// For plain scores that is one FMA: scale * s - shift. ALiBi's distances and softcap's tanh can be
// had there as well, where issue slots are free, rather than before the maxima, where everybody
// waits: the maxima of bare products bound those of the scores. Only where that bound is not good
// enough (a row has grown, the tile lies across ALiBi's diagonal, tanh bends too much) are scores
// made first, exactly (Besides::modify), and nothing is left to be added here.
#pragma once

#include "cuda/device/attention/besides.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Exponents {
  static constexpr int kCount = C.tile_kv / 2;
  float scale;                         // to units of log2
  float shift[2];                      // what the rows have subtracted, in these units
  bool exact;                          // products can stand for scores
  float slope[2] = {}, first[2] = {};  // ALiBi: slope * (first + column), in these units
  float inverse = 0.0f, bend[4] = {};  // softcap: tanh(x) / x = 1 + bend[0] s^2 + bend[1] s^4 ...

  // Of scores that have been made.
  TW_DEVICE static Exponents of_scores(const ForwardParams& p, const RowPair& rows) {
    Exponents e;
    e.scale = score_scale<C>(p);
    for (int r = 0; r < 2; ++r) e.shift[r] = rows.top[r] * e.scale;
    e.exact = true;
    return e;
  }

  // Of what is at hand before: products, if what is done to them can be left to this.
  TW_DEVICE static Exponents of_tile(const ForwardParams& p, const Work& w, Place at, int kv_row,
                                     const Besides<C>& besides, const RowPair& rows) {
    Exponents e = of_scores(p, rows);
    if constexpr (C.defers()) e.scale = p.scale_log2;
    if constexpr (C.defers_alibi()) e.lay_line(w, at, kv_row, besides);
    if constexpr (C.defers_softcap()) e.bend_by(p.scale_over_softcap);
    return e;
  }

  TW_DEVICE float operator()(float s, int i) const {
    const int r = i / 2 % 2;
    if constexpr (C.defers_alibi())
      return fmaf(s, scale, fmaf(slope[r], static_cast<float>(i / 4 * 8 + i % 2), -shift[r]));
    if constexpr (C.defers_softcap()) {
      const float t = s * s;
      const float curve = fmaf(fmaf(fmaf(bend[3], t, bend[2]), t, bend[1]), t, bend[0]);
      return fmaf(s * scale, fmaf(curve, t, 1.0f), -shift[r]);
    }
    return fmaf(s, scale, -shift[r]);
  }

  // Whether they will do as they are: no row's maximum has grown by more than shifts allow for, and
  // none is far. Of this thread's own scores; rows whose limit is negative, and with it, maybe, all
  // scores (max_bits), never will.
  TW_DEVICE bool suffice(const float (&s)[kCount]) const {
    int top[2];
    max_bits(s, 0, top);
    bool good = exact;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float limit = shift[r] + kLazy - largest_on_line(r);
      good &= __int_as_float(top[r]) * scale <= (limit < 0.0f ? kMinusInf : limit);
      good &= !is_far(shift[r]);
    }
    if constexpr (C.defers_softcap()) good &= bends_little(s, top);
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

 private:
  static constexpr float kBend = 0.8f;  // the series' relative error is 1.2e-6 up to here

  // ALiBi takes slope * |key - query| off: a line, as long as the tile's keys lie on one side.
  TW_DEVICE void lay_line(const Work& w, Place at, int kv_row, const Besides<C>& besides) {
    const int on_diagonal = w.q_row + w.diagonal;
    const bool left = w.hi <= w.diagonal || kv_row + C.tile_kv - 1 <= on_diagonal;
    const bool right = kv_row >= on_diagonal + C.tile_queries() - 1;
    exact = left || right;
    for (int r = 0; r < 2; ++r) {
      slope[r] = left ? besides.slope[r] : -besides.slope[r];
      first[r] = static_cast<float>(kv_row + at.quad_lane * 2 - at.row[r] - w.diagonal);
    }
  }
  TW_DEVICE float largest_on_line(int r) const {
    if constexpr (!C.defers_alibi()) return 0.0f;
    constexpr float kLast = kCount / 4 * 8 - 7;
    return slope[r] * (slope[r] > 0.0f ? first[r] + kLast : first[r]);
  }

  // softcap's tanh, as a series in the square of x = s * inverse, minimax on |x| <= kBend.
  TW_DEVICE void bend_by(float inverse_cap) {
    constexpr float kSeries[4] = {-0.333275837f, 0.132432571f, -0.0494471638f, 0.01228662499f};
    inverse = inverse_cap;
    float power = inverse * inverse;
#pragma unroll
    for (int i = 0; i < 4; ++i, power *= inverse * inverse) bend[i] = kSeries[i] * power;
  }
  TW_DEVICE bool bends_little(const float (&s)[kCount], const int (&top)[2]) const {
    uint32_t lowest = 0;  // as unsigned bits: the most negative, if any is
#pragma unroll
    for (int i = 0; i < kCount; ++i) lowest = max_of(lowest, __float_as_uint(s[i]));
    const float highest = __int_as_float(max_of(top[0], top[1]));
    return fmaxf(fabsf(__uint_as_float(lowest)), highest) * inverse <= kBend;
  }
};

}  // namespace tilewise::sm90
