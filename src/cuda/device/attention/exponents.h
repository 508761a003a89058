// From a tile's products to exponents of two, one by one, in the shadow of the exponentials.
//
// That is one FMA: scale * s - shift. What ALiBi adds to all of a row's scores alike
// (attention/alibi.h) is part of the shift.
#pragma once

#include "cuda/device/attention/alibi.h"
#include "cuda/device/attention/besides.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Exponents {
  static constexpr int kCount = C.tile_kv / 2;
  float scale;           // to units of log2
  float shift[2];        // what the rows have subtracted, in these units
  bool complete = true;  // but for `base`, which all of a row's scores lack
  float base[2] = {};

  TW_DEVICE Exponents(const ForwardParams& p, const RowPair& rows) : scale(score_scale<C>(p)) {
    for (int r = 0; r < 2; ++r) shift[r] = rows.top[r] * scale;
  }

  // Of a tile whose products ALiBi's share is still to be added to.
  TW_DEVICE void add_base(const ForwardParams& p, const Alibi<C>& alibi, const Work& w, Place at,
                          int kv_row) {
    scale = p.scale_log2;
    complete = alibi.find_base(w, at, kv_row, base);
  }

  // Whether they will do as they are: no row's maximum has grown by more than shifts allow for, and
  // none is far. Of this thread's own scores. Rows whose limit is negative, and with it, maybe, all
  // scores (max_bits: the greatest then looks like the least, or like a hidden one), never will,
  // nor rows that have seen nothing yet.
  TW_DEVICE bool suffice(const float (&s)[kCount]) const {
    int top[2];
    max_bits(s, 0, top);
    bool good = complete;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float limit = shift[r] + kLazy - base[r];
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
      if constexpr (C.defers_alibi()) shift[r] -= base[r];
    }
  }

  TW_DEVICE float operator()(float s, int i) const {
    return fmaf(s, scale, -shift[i / 2 % 2]);
  }
};

}  // namespace tilewise::sm90
