// From the number of a work item to what it computes: which head, which query rows, which keys.
// Producer and consumers both ask here, so they can't disagree about the keys to visit.
#pragma once

#include "core/mask.h"
#include "cuda/device/ptx/base.h"
#include "cuda/device/sm90/forward_config.h"
#include "cuda/device/sm90/forward_params.h"

namespace tilewise::sm90 {

// Key tiles, as numbers of tiles. Those in [full_begin, full_end) are seen by every row.
struct KvTiles {
  int begin, end;
  int full_begin, full_end;
  TW_DEVICE bool empty() const { return begin >= end; }
  TW_DEVICE bool partial(int tile) const { return tile < full_begin || tile >= full_end; }
};

struct Work {
  int batch, head;
  int q_row;                // first query of the tile, inside its sequence
  int q_begin, kv_begin;    // where the sequence begins in a packed tensor
  int q_slot;               // rows of O to be written
  int seq_q, seq_kv;        // lengths in use
  int lo, hi;               // the band: key - query, clamped to 32 bits
  int64_t diagonal;         // off: ALiBi measures |i + off - j|
  KvTiles kv;
};

// Static order: CTA c takes items c, c + grid, ... With kLongestFirst every second round runs
// backwards, so that the CTA that took the longest item of a round takes the shortest of the next.
template <ForwardConfig C>
struct WorkCursor {
  int round = 0;

  TW_DEVICE int index() const {
    const int grid = gridDim.x, cta = blockIdx.x;
    const bool backwards = C.order == Order::kLongestFirst && round % 2;
    return round * grid + (backwards ? grid - 1 - cta : cta);
  }
  TW_DEVICE bool more(const ForwardParams& p) const {
    // The last round may be cut: a CTA whose number in it is too high is done.
    return index() < p.work_items;
  }
  TW_DEVICE void advance() { ++round; }
};

template <ForwardConfig C>
TW_DEVICE void locate(const ForwardParams& p, int index, Work& w) {
  int head_of_all;
  if constexpr (C.order == Order::kLongestFirst) {
    const int section_items = p.section_heads * p.q_tiles;
    const int section = index / section_items, rest = index % section_items;
    const int first = section * p.section_heads;
    const int heads = min_of(p.section_heads, p.batch * p.heads_q - first);
    head_of_all = first + rest % heads;
    w.q_row = (p.q_tiles - 1 - rest / heads) * C.tile_q;
  } else {
    head_of_all = index / p.q_tiles;
    w.q_row = index % p.q_tiles * C.tile_q;
  }
  w.batch = head_of_all / p.heads_q;
  w.head = head_of_all % p.heads_q;
}

template <ForwardConfig C>
TW_DEVICE void measure(const ForwardParams& p, Work& w) {
  w.q_begin = w.kv_begin = 0;
  w.q_slot = w.seq_q = p.seq_q;
  w.seq_kv = p.seq_kv;
  if constexpr (C.varlen) {
    if (p.cu_seqlens_q) {
      w.q_begin = p.cu_seqlens_q[w.batch];
      w.q_slot = w.seq_q = p.cu_seqlens_q[w.batch + 1] - w.q_begin;
    }
    if (p.cu_seqlens_kv) {
      w.kv_begin = p.cu_seqlens_kv[w.batch];
      w.seq_kv = p.cu_seqlens_kv[w.batch + 1] - w.kv_begin;
    }
    if (p.seqused_q) w.seq_q = p.seqused_q[w.batch];
    if (p.seqused_kv) w.seq_kv = p.seqused_kv[w.batch];
  }
}

template <ForwardConfig C>
TW_DEVICE Work make_work(const ForwardParams& p, int index) {
  Work w;
  locate<C>(p, index, w);
  measure<C>(p, w);
  const BandMask mask =
      make_band({w.seq_q, w.seq_kv, false, p.left, p.right, p.bottom_right});
  constexpr int64_t kFar = 1 << 30;
  w.lo = static_cast<int>(max_of(mask.lo, -kFar));
  w.hi = static_cast<int>(min_of(mask.hi, kFar));
  w.diagonal = p.bottom_right ? w.seq_kv - w.seq_q : 0;

  const Span q{w.q_row, w.q_row + C.tile_q};
  const Span seen = mask.keys_of(q), common = mask.keys_common_to(q);
  constexpr int kN = C.tile_kv;
  w.kv.begin = static_cast<int>(seen.begin) / kN;
  w.kv.end = (static_cast<int>(seen.end) + kN - 1) / kN;
  // Without a full tile both ends meet, inside [begin, end], and every tile counts as partial.
  w.kv.full_begin = common.empty() ? w.kv.begin : (static_cast<int>(common.begin) + kN - 1) / kN;
  w.kv.full_end = max_of(w.kv.full_begin, static_cast<int>(common.end) / kN);
  return w;
}

}  // namespace tilewise::sm90
