// From the number of a work item to what it computes: a key tile of a kv head, and the query tiles
// that see it, of every query head of the group.
//
// Turns. dQ of a query tile is the sum of the parts of every key tile it sees. With
// Additions::kFixed they are added in an order that depends on nothing but the problem and the
// grid, chosen so that it is also the order in which they come about by themselves:
//
//   banded   CTAs of a head walk the queries upwards from their own diagonal, so at any query the
//            CTA with the last keys passes first: turns go by falling key tile, and items are
//            handed out in that order, so no CTA waits for one that nobody has taken.
//   full     the CTAs that work on a head in the same round of the grid form a circle: CTA i of n
//            starts i/n of the way round and they follow each other at equal distance. Waiting for
//            a CTA of the same round is safe because the grid is launched to be on the chip as a
//            whole.
#pragma once

#include "core/mask.h"
#include "core/softmax_state.h"
#include "cuda/device/ptx/sync.h"
#include "cuda/device/sm90/backward_config.h"
#include "cuda/device/sm90/backward_params.h"

namespace tilewise::sm90::backward {

// A sequence's lengths and where it lies.
struct Sequence {
  int batch;
  int q_begin, kv_begin;  // where it begins in a packed tensor
  int q_slot, kv_slot;    // rows that are its own
  int seq_q, seq_kv;      // rows in use
  int first_tile;         // of its query tiles in the workspace
  int lo, hi;             // the band: key - query, clamped to 32 bits
  int diagonal;           // off: ALiBi measures |i + off - j|

  TW_DEVICE Span keys_of_tile(int tile, int tile_q) const {
    return band().keys_of({int64_t{tile} * tile_q, int64_t{tile + 1} * tile_q});
  }
  TW_DEVICE BandMask band() const { return {seq_q, seq_kv, lo, hi}; }
};

template <BackwardConfig C>
TW_DEVICE Sequence make_sequence(const BackwardParams& p, int batch) {
  Sequence s{};
  s.batch = batch;
  s.q_slot = s.seq_q = p.seq_q;
  s.kv_slot = s.seq_kv = p.seq_kv;
  s.first_tile = batch * p.q_tiles;
  if constexpr (C.varlen) {
    if (p.cu_seqlens_q) {
      s.q_begin = p.cu_seqlens_q[batch];
      s.q_slot = s.seq_q = p.cu_seqlens_q[batch + 1] - s.q_begin;
      s.first_tile = first_packed_tile(s.q_begin, batch, C.tile_q);
    }
    if (p.cu_seqlens_kv) {
      s.kv_begin = p.cu_seqlens_kv[batch];
      s.kv_slot = s.seq_kv = p.cu_seqlens_kv[batch + 1] - s.kv_begin;
    }
    if (p.seqused_q) s.seq_q = p.seqused_q[batch];
    if (p.seqused_kv) s.seq_kv = p.seqused_kv[batch];
  }
  const BandMask mask = make_band({s.seq_q, s.seq_kv, false, p.left, p.right, p.bottom_right});
  constexpr int64_t kFar = 1 << 30;
  s.lo = static_cast<int>(max_of(mask.lo, -kFar));
  s.hi = static_cast<int>(min_of(mask.hi, kFar));
  s.diagonal = p.bottom_right ? s.seq_kv - s.seq_q : 0;
  return s;
}

// The first row of a head: packed tensors have no batch stride, dense ones no offset.
TW_DEVICE uint16_t* first_row(const RowTensor& t, int batch, int head, int64_t row) {
  return static_cast<uint16_t*>(t.data) + batch * t.stride_b + head * t.stride_h + row * t.stride_s;
}

struct Work {
  Sequence sequence;
  int kv_head;  // kNoMoreWork ends it all
  int kv_row;   // first key of the tile, inside its sequence
  int q_tile;   // the first query tile that sees it
  int q_tiles;  // how many do, of each head
  int steps;    // of all heads of the group
  int start;    // the step to begin with
  int circle;   // full: CTAs of its circle ...
  int place;    // ... this one's place in it
  int before;   // ... and how many key tiles have had their turns before it
};
inline constexpr int kNoMoreWork = -1;

// Walks the query tiles of a work item: position 0 ... steps - 1, from `start` on and round.
struct StepCursor {
  const int steps, q_tiles;
  int left, head_of_group, tile;

  // For a single thread.
  TW_DEVICE static StepCursor alone(const Work& w) { return {w.steps, w.q_tiles, w.start}; }
  // For a converged warp; w lies in shared memory, so the compiler must be told what is uniform.
  TW_DEVICE static StepCursor uniform(const Work& w) {
    return {ptx::warp_uniform(w.steps), ptx::warp_uniform(w.q_tiles), ptx::warp_uniform(w.start)};
  }
  TW_DEVICE StepCursor(int step_count, int q_tile_count, int start)
      : steps(step_count), q_tiles(q_tile_count), left(step_count) {
    head_of_group = start / max_of(q_tiles, 1);
    tile = start - head_of_group * q_tiles;
  }
  TW_DEVICE int position() const { return head_of_group * q_tiles + tile; }
  TW_DEVICE StepCursor next() const {
    StepCursor after = *this;
    after.advance();
    return after;
  }
  TW_DEVICE void advance() {
    --left;
    if (++tile < q_tiles) return;
    tile = 0;
    ++head_of_group;
    if (position() == steps) head_of_group = 0;
  }
};

// How many other parts are added to the query tile before this work item's.
template <BackwardConfig C>
TW_DEVICE int turn_of(const Work& w, const StepCursor& at) {
  const Sequence& s = w.sequence;
  if constexpr (C.band != Band::kFull) {
    const int rows_end = min_of((w.q_tile + at.tile + 1) * C.tile_q, s.seq_q);
    const int last_key = min_of(s.seq_kv - 1, rows_end - 1 + s.hi);
    return last_key / C.tile_kv - w.kv_row / C.tile_kv;
  }
  // Those that started at or before this position come first, the nearest of them leading.
  const int64_t scaled = (int64_t{at.position()} + 1) * w.circle + w.steps - 1;
  const int begun = min_of(w.circle, static_cast<int>(scaled / w.steps));
  const int rank = w.place < begun ? begun - 1 - w.place : begun + w.circle - 1 - w.place;
  return w.before + rank;
}

// Full: CTA c takes items c, c + grid, ... so that circles are known beforehand. Banded: items are
// taken from a counter as CTAs become free. The first may be the CTA's own number, which is there
// before the counter is; but in turns, an item must not wait for one whose CTA has yet to come.
template <BackwardConfig C>
TW_DEVICE int first_item(const BackwardParams& p) {
  if (C.band == Band::kFull || C.additions == Additions::kAny) return blockIdx.x;
  ptx::wait_for_previous_kernel();  // which set the counter to 0
  return atomicAdd(p.items_taken, 1);
}
template <BackwardConfig C>
TW_DEVICE int next_item(const BackwardParams& p, int index) {
  const int grid = gridDim.x;
  if constexpr (C.band == Band::kFull) return index + grid;
  ptx::wait_for_previous_kernel();
  return atomicAdd(p.items_taken, 1) + (C.additions == Additions::kAny ? grid : 0);
}

struct Place {
  int kv_head_of_all, kv_tile;
};

template <BackwardConfig C>
TW_DEVICE Place place_of(const BackwardParams& p, int index) {
  if constexpr (C.band != Band::kFull && C.additions == Additions::kAny) {  // longest first
    const int section_items = p.section_heads * p.kv_tiles;
    const int section = index / section_items, rest = index % section_items;
    const int first = section * p.section_heads;
    const int heads = min_of(p.section_heads, p.batch * p.heads_kv - first);
    return {first + rest % heads, rest / heads};
  }
  const int head = index / p.kv_tiles, tile = index % p.kv_tiles;
  return {head, C.band == Band::kFull ? tile : p.kv_tiles - 1 - tile};
}

// Written field by field to shared memory: whoever does it has few registers.
template <BackwardConfig C>
TW_DEVICE void make_work(const BackwardParams& p, int index, Work& s_work) {
  const Place place = place_of<C>(p, index);
  const Sequence sequence = make_sequence<C>(p, place.kv_head_of_all / p.heads_kv);
  s_work.sequence = sequence;
  const int kv_row = place.kv_tile * C.tile_kv;
  const Span seen = sequence.band().queries_of({kv_row, int64_t{kv_row} + C.tile_kv});
  const int q_tile = static_cast<int>(seen.begin) / C.tile_q;
  const int q_tiles =
      seen.empty() ? 0 : (static_cast<int>(seen.end) + C.tile_q - 1) / C.tile_q - q_tile;
  const int steps = q_tiles * p.heads_per_kv;
  s_work.kv_head = place.kv_head_of_all % p.heads_kv;
  s_work.kv_row = kv_row;
  s_work.q_tile = q_tile;
  s_work.q_tiles = q_tiles;
  s_work.steps = steps;
  s_work.start = 0;
  if constexpr (C.band == Band::kFull) {
    const int grid = gridDim.x, tiles = ceil_div(sequence.seq_kv, C.tile_kv);
    const int head_begin = place.kv_head_of_all * p.kv_tiles, round = index / grid;
    const int first = max_of(0, round * grid - head_begin);
    const int circle = max_of(1, min_of(tiles, (round + 1) * grid - head_begin) - first);
    s_work.before = first;
    s_work.place = place.kv_tile - first;
    s_work.circle = circle;
    s_work.start = static_cast<int>(int64_t{place.kv_tile - first} * steps / circle);
  }
}

}  // namespace tilewise::sm90::backward
