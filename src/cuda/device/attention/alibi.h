// ALiBi inside the product. slope * |key - query| is a plane as long as a tile's keys lie on one
// side of the diagonal: along the columns it is added by a product of depth 16, of the rows'
// slopes and the numbers of the tile's columns (tile/column_numbers.h), and along the rows it is
// one number a step, which joins what is subtracted before exp2. Tiles across the diagonal get
// zeros from the product, and their distances one by one.
#pragma once

#include "cuda/device/attention/scores.h"
#include "cuda/device/ptx/wgmma.h"
#include "cuda/device/tile/column_numbers.h"

namespace tilewise::sm90 {

// Nothing, in a kernel whose products leave it alone.
template <ForwardConfig C, bool kDeferred = C.defers_alibi()>
struct Alibi {
  TW_DEVICE void take_slopes(const ForwardParams&, const Work&, Place) {}
  TW_DEVICE void face(const Work&, int) {}
};

template <ForwardConfig C>
struct Alibi<C, true> {
  using Numbers = tile::ColumnNumbers<C.tile_kv>;
  using Product = ptx::Wgmma<Element::kBf16, C.tile_kv>;

  float slope[2];         // of the thread's two rows, in units of log2 for each key
  uint32_t parts[2];      // what the product takes of them: slope / scale, in bf16 parts
  uint32_t operand[4]{};  // the same for the tile at hand

  // Of the work that the next scores are of.
  TW_DEVICE void take_slopes(const ForwardParams& p, const Work& w, Place at) {
    load_slopes(p, w, at, slope);
    for (int r = 0; r < 2; ++r) parts[r] = parts_of(slope[r] / p.scale_log2, at.quad_lane);
  }

  // Before the scores of the tile whose keys begin at kv_row are issued.
  TW_DEVICE void face(const Work& w, int kv_row) {
    const Side side = side_of(w, kv_row);
    for (int r = 0; r < 2; ++r)
      operand[r] = side == Side::kAcross  ? 0
                   : side == Side::kRight ? parts[r] ^ 0x80008000u
                                          : parts[r];
  }
  TW_DEVICE void issue(float (&s)[C.tile_kv / 2], uint32_t s_numbers) const {
    Product::template rs<ptx::Major::kK>(s, operand, Numbers{s_numbers}.descriptor(),
                                         ptx::Accumulate::kKeep);
  }

  // What the product has not added to the scores of its two rows, in units of log2; false if the
  // tile lies across the diagonal.
  TW_DEVICE bool find_base(const Work& w, Place at, int kv_row, float (&base)[2]) const {
    const Side side = side_of(w, kv_row);
    for (int r = 0; r < 2; ++r) {
      const auto distance = static_cast<float>(at.row[r] + w.diagonal - kv_row);
      base[r] = slope[r] * (side == Side::kRight ? distance : -distance);
    }
    return side != Side::kAcross;
  }

  // Products become scores, in units of log2.
  TW_DEVICE void complete(const ForwardParams& p, const Work& w, Place at, int kv_row,
                          float (&s)[C.tile_kv / 2]) const {
    float base[2];
    if (find_base(w, at, kv_row, base)) {
#pragma unroll
      for (int i = 0; i < C.tile_kv / 2; ++i) s[i] = fmaf(s[i], p.scale_log2, base[i / 2 % 2]);
    } else {
      for (float& x : s) x *= p.scale_log2;
      subtract_distances<C>(w, at, kv_row, slope, s);
    }
  }

 private:
  // Of the diagonal that distances are counted from, where all queries of the work see a tile's
  // keys. Keys that the band hides may lie anywhere.
  enum class Side { kLeft, kRight, kAcross };
  TW_DEVICE static Side side_of(const Work& w, int kv_row) {
    const int first = w.q_row + w.diagonal;
    if (w.hi <= w.diagonal || kv_row + C.tile_kv - 1 <= first) return Side::kLeft;
    return kv_row >= first + C.tile_queries() - 1 ? Side::kRight : Side::kAcross;
  }

  // x in three parts of 8 bits, as the first two lanes of a quad hold them: k = 0, 1 and k = 2, 3.
  TW_DEVICE static uint32_t parts_of(float x, int quad_lane) {
    constexpr uint32_t kPart = 0xFFFF0000u;
    const uint32_t high = __float_as_uint(x) & kPart;
    const float rest = x - __uint_as_float(high);
    const uint32_t middle = __float_as_uint(rest) & kPart;
    const uint32_t low = __float_as_uint(rest - __uint_as_float(middle)) & kPart;
    return quad_lane == 0 ? high >> 16 | middle : quad_lane == 1 ? low >> 16 : 0;
  }
};

}  // namespace tilewise::sm90
