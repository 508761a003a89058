// What a tile of scores needs beside its products, and what is done to it before the softmax:
// softcap, ALiBi, bias, in this order (docs/semantics.md). Each is there only if the config has it.
#pragma once

#include "cuda/device/attention/bias.h"
#include "cuda/device/attention/dropout.h"
#include "cuda/device/attention/scores.h"

namespace tilewise::sm90 {

// What brings modified scores to units of log2: it is left to the subtraction before exp2 if
// nothing is added to them.
template <ForwardConfig C>
TW_DEVICE float score_scale(const ForwardParams& p) {
  return C.scales_scores() ? 1.0f : C.softcap ? p.softcap_log2 : p.scale_log2;
}

template <ForwardConfig C>
struct Besides {
  BiasTile<C> bias;
  DroppedBits<C> dropped;

  // While the products are in flight.
  TW_DEVICE void prepare(const ForwardParams& p, const Work& w, Place at, int kv_row) {
    if constexpr (C.bias_pairs) bias.load(p, w, at, kv_row);
    if constexpr (C.dropout) dropped.draw(p, w, at, kv_row);
  }

  // Products become scores, in units of 1 / score_scale().
  TW_DEVICE void modify(const ForwardParams& p, const Work& w, Place at, int kv_row,
                        float (&s)[C.tile_kv / 2]) const {
    if constexpr (C.softcap) cap_scores(p.scale_over_softcap, s);
    if constexpr (C.scales_scores())
      for (float& x : s) x *= C.softcap ? p.softcap_log2 : p.scale_log2;
    if constexpr (C.alibi) {
      float slopes[2];
      load_slopes(p, w, at, slopes);
      subtract_distances<C>(w, at, kv_row, slopes, s);
    }
    if constexpr (C.bias_pairs)
      bias.add_to(s);
    else if constexpr (C.bias != BiasType::kNone)
      add_strided_bias<C>(p, w, at, kv_row, s);
  }
};

}  // namespace tilewise::sm90
