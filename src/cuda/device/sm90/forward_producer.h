// The producer of the Hopper forward, and what it shares with the consumers: tiles, rings, work.
#pragma once

#include "cuda/device/attention/work.h"
#include "cuda/device/ptx/tma.h"
#include "cuda/device/tile/column_numbers.h"
#include "cuda/device/tile/ring.h"
#include "cuda/device/tile/swizzled_tile.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Tiles {
  using Q = tile::SwizzledTile<C.tile_q, C.head_dim>;
  using K = tile::SwizzledTile<C.tile_kv, C.head_dim>;
  using V = tile::SwizzledTile<C.tile_kv, C.head_dim_v>;
};

// Work items in flight: the one whose output a consumer still holds, the next, and two ahead.
inline constexpr int kWorkStages = 4;

template <int kBytes>
struct Bytes {
  uint8_t at[kBytes];
};
template <>
struct Bytes<0> {};

// Tiles at multiples of 1024 bytes first.
template <ForwardConfig C>
struct Shared {
  uint8_t q[C.q_stages][Tiles<C>::Q::kBytes];
  [[no_unique_address]] Bytes<C.column_number_bytes()>
      column_numbers;  // memcheck takes them for longer
  uint8_t k[C.stages][Tiles<C>::K::kBytes];
  uint8_t v[C.stages][Tiles<C>::V::kBytes];
  tile::RingBarriers<C.q_stages> q_ring;
  tile::RingBarriers<C.stages> k_ring, v_ring;
  tile::RingBarriers<kWorkStages> work_ring;
  Work work[kWorkStages];
  KvTiles tiles[kWorkStages][C.consumers()];  // of each work
};

template <ForwardConfig C>
struct Producer {
  const ForwardParams& p;
  Shared<C>& shared;
  tile::RingCursor<C.q_stages> q_cursor{};
  tile::RingCursor<C.stages> k_cursor{}, v_cursor{};
  tile::RingCursor<kWorkStages> work_cursor{};

  // One box for each panel of 64 columns.
  template <class Tile>
  TW_DEVICE void load_tile(ptx::TmaLoad load, const uint8_t* s_tile, TmaCoordinates at) const {
    const uint32_t s_address = ptx::shared_address(s_tile);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      at.c0 = panel * tile::kPanelColumns;
      ptx::tma_load_4d(load, s_address + panel * Tile::kPanelBytes, at);
    }
  }

  TW_DEVICE void load_q(const Work& w) {
    using Q = typename Tiles<C>::Q;
    constexpr int kRows = C.tile_queries() * C.packed_heads;  // TMA counts what it brings
    uint64_t* const full = q_cursor.acquire(shared.q_ring, Q::kBytes / C.tile_q * kRows);
    const int batch = C.varlen && p.cu_seqlens_q ? 0 : w.batch;
    const int row = w.q_begin + w.q_row;
    load_tile<Q>({&p.q, full, ptx::l2_evict_first()}, shared.q[q_cursor.stage],
                 C.packed_heads == 1 ? TmaCoordinates{0, row, w.head, batch}
                                     : TmaCoordinates{0, w.head, row, batch});
    q_cursor.advance();
  }
  TW_DEVICE void load_k(const Work& w, int tile) {
    using K = typename Tiles<C>::K;
    uint64_t* const full = k_cursor.acquire(shared.k_ring, K::kBytes);
    load_tile<K>({&p.k, full, ptx::l2_evict_last()}, shared.k[k_cursor.stage], kv_at(w, tile));
    k_cursor.advance();
  }
  TW_DEVICE void load_v(const Work& w, int tile) {
    using V = typename Tiles<C>::V;
    uint64_t* const full = v_cursor.acquire(shared.v_ring, V::kBytes);
    load_tile<V>({&p.v, full, ptx::l2_evict_last()}, shared.v[v_cursor.stage], kv_at(w, tile));
    v_cursor.advance();
  }
  TW_DEVICE TmaCoordinates kv_at(const Work& w, int tile) const {
    const int batch = C.varlen && p.cu_seqlens_kv ? 0 : w.batch;
    return {0, w.kv_begin + tile * C.tile_kv, w.head / p.heads_per_kv, batch};
  }

  // Consumers get their work from here, since finding it takes longer than they can wait.
  TW_DEVICE void hand_out(const Work& w) {
    work_cursor.wait_free(shared.work_ring);
    shared.work[work_cursor.stage] = w;
#pragma unroll 1
    for (int i = 0; i < C.consumers(); ++i)
      shared.tiles[work_cursor.stage][i] = tiles_of_rows<C>(w, 64 * i);
    work_cursor.publish(shared.work_ring);
  }

  // First the works that see keys, which follow each other over bridges, then those of rows that
  // see none. Between the others they would be in the way: a consumer that walks over many of them
  // while it holds the output of a work would wait for the slot that it holds.
  TW_DEVICE void run() {
    bool unseen = false;
    for (WorkCursor<C> cursor; cursor.more(p); cursor.advance()) {
      const Work w = make_work<C>(p, cursor.index());
      unseen |= writes_unseen(w);
      if (!w.sees_keys()) continue;
      hand_out(w);
      load_k(w, w.kv_end_tile - 1);
      load_q(w);
      for (int tile = w.kv_end_tile - 1; tile > w.kv_begin_tile; --tile) {
        load_k(w, tile - 1);
        load_v(w, tile);
      }
      load_v(w, w.kv_begin_tile);
    }
    hand_out_end();
    if (unseen)
      for (WorkCursor<C> cursor; cursor.more(p); cursor.advance()) {
        const Work w = make_work<C>(p, cursor.index());
        if (writes_unseen(w)) hand_out(w);
      }
    hand_out_end();
  }
  TW_DEVICE static bool writes_unseen(const Work& w) {
    return !w.sees_keys() && w.q_row < w.q_slot;
  }
  TW_DEVICE void hand_out_end() {
    work_cursor.wait_free(shared.work_ring);
    shared.work[work_cursor.stage].q_row = kNoMoreWork;
    work_cursor.publish(shared.work_ring);
  }
};

}  // namespace tilewise::sm90
