// From the number of a work item to what it computes: which head, which query rows, which keys.
#pragma once

#include "core/mask.h"
#include "cuda/device/ptx/sync.h"
#include "cuda/device/sm90/forward_config.h"
#include "cuda/device/sm90/forward_params.h"

namespace tilewise::sm90 {

// The key tiles of a consumer's 64 rows (from `first_row` of the tile on), a part of its work's:
// [begin, end) are visited, those in [full_begin, full_end) are seen by every row.
struct alignas(16) KvTiles {
  int begin, end;
  int full_begin, full_end;
  TW_DEVICE bool partial(int tile) const { return tile < full_begin || tile >= full_end; }
};

// What the producer finds out and hands to the consumers through shared memory.
struct Work {
  uint16_t* g_o;  // the first row of the tile, of this head
  float* g_lse;
  int batch, head;        // the first of its packed heads
  int q_row;              // first query of the tile, inside its sequence; kNoMoreWork ends it all
  int q_begin, kv_begin;  // where the sequence begins in a packed tensor
  int q_slot;             // rows of O to be written
  int seq_q, seq_kv;      // lengths in use
  int lo, hi;             // the band: key - query, clamped to 32 bits
  int diagonal;           // off: ALiBi measures |i + off - j|
  int kv_begin_tile, kv_end_tile;  // key tiles that some row sees
  TW_DEVICE bool sees_keys() const { return kv_begin_tile < kv_end_tile; }
};
inline constexpr int kNoMoreWork = -1;

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

// Packed sequences are one list of tiles.
template <ForwardConfig C>
TW_DEVICE int first_tile(const ForwardParams& p, int batch) {
  return first_packed_tile(__ldg(p.cu_seqlens_q + batch), batch, C.tile_queries());
}
template <ForwardConfig C>
TW_DEVICE int sequence_of(const ForwardParams& p, int tile) {
  int low = 0, high = p.batch - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_tile<C>(p, middle) <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <ForwardConfig C>
TW_DEVICE void locate(const ForwardParams& p, int index, Work& w) {
  const bool packed = C.varlen && p.cu_seqlens_q;
  const int slots = p.heads_q / C.packed_heads;
  int head_of_all, tile;
  if constexpr (C.order == Order::kLongestFirst) {
    const int section_items = p.section_heads * p.q_tiles;
    const int section = index / section_items, rest = index % section_items;
    const int first = section * p.section_heads;
    const int heads = min_of(p.section_heads, (packed ? 1 : p.batch) * slots - first);
    head_of_all = first + rest % heads;
    tile = p.q_tiles - 1 - rest / heads;
  } else {
    head_of_all = index / p.q_tiles;
    tile = index % p.q_tiles;
  }
  w.batch = packed ? sequence_of<C>(p, tile) : head_of_all / slots;
  w.head = head_of_all % slots * C.packed_heads;
  w.q_row = (packed ? tile - first_tile<C>(p, w.batch) : tile) * C.tile_queries();
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
TW_DEVICE KvTiles tiles_of_rows(const Work& w, int first_row) {
  constexpr int kN = C.tile_kv;
  constexpr int kHeads = C.packed_heads;
  const int first = w.q_row + first_row / kHeads;
  KvTiles t{w.kv_begin_tile, w.kv_end_tile, 0, w.seq_kv / kN};
  if constexpr (C.band != Band::kFull) {
    const int last_of_rows = min_of((first_row + 63) / kHeads, C.tile_queries() - 1);
    const int last = min_of(w.q_row + last_of_rows, w.seq_q - 1);
    // At least one tile, if only to find it hidden: a consumer always has something to normalize.
    t.end = max_of(t.begin + 1, min_of(t.end, (last + w.hi + kN) / kN));
    t.full_end = min_of(t.full_end, max_of(0, first + w.hi + 1) / kN);
    if constexpr (C.band == Band::kBoth) t.full_begin = (max_of(0, last + w.lo) + kN - 1) / kN;
  }
  // Without a full tile both ends meet and every tile counts as partial.
  t.full_begin = C.band == Band::kBoth ? max_of(t.full_begin, t.begin) : t.begin;
  t.full_end = max_of(t.full_begin, t.full_end);
  return t;
}

template <ForwardConfig C>
TW_DEVICE Work make_work(const ForwardParams& p, int index) {
  Work w;
  locate<C>(p, index, w);
  measure<C>(p, w);
  w.kv_begin_tile = w.kv_end_tile = 0;
  if (C.varlen && w.q_row >= w.q_slot) return w;  // past its sequence
  const BandMask mask = make_band({w.seq_q, w.seq_kv, false, p.left, p.right, p.bottom_right});
  constexpr int64_t kFar = 1 << 30;
  w.lo = static_cast<int>(max_of(mask.lo, -kFar));
  w.hi = static_cast<int>(min_of(mask.hi, kFar));
  w.diagonal = p.bottom_right ? w.seq_kv - w.seq_q : 0;

  const Span seen = mask.keys_of({w.q_row, w.q_row + C.tile_queries()});
  w.kv_begin_tile = static_cast<int>(seen.begin) / C.tile_kv;
  w.kv_end_tile = (static_cast<int>(seen.end) + C.tile_kv - 1) / C.tile_kv;

  const int64_t row = int64_t{w.q_begin} + w.q_row;
  const int64_t batch = C.varlen && p.cu_seqlens_q ? 0 : w.batch;
  w.g_o = static_cast<uint16_t*>(p.o) + batch * p.o_stride_b + w.head * p.o_stride_h +
          row * p.o_stride_s;
  w.g_lse = p.lse + batch * p.lse_stride_b + w.head * p.lse_stride_h + row * p.lse_stride_s;
  return w;
}

}  // namespace tilewise::sm90
