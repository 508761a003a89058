// The first warpgroup of the Hopper backward: one thread loads by TMA, one sends dQ away; and what
// all warps share.
#pragma once

#include "cuda/device/ptx/global.h"
#include "cuda/device/ptx/tma.h"
#include "cuda/device/sm90/backward_work.h"
#include "cuda/device/tile/ring.h"
#include "cuda/device/tile/swizzled_tile.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct Tiles {
  using Q = tile::SwizzledTile<C.tile_q, C.head_dim>;
  using DO = tile::SwizzledTile<C.tile_q, C.head_dim_v>;
  using K = tile::SwizzledTile<C.tile_kv, C.head_dim>;
  using V = tile::SwizzledTile<C.tile_kv, C.head_dim_v>;
  using DS = tile::SwizzledTile<C.tile_q, C.tile_kv>;
};

inline constexpr int kWorkStages = 2;  // the one at hand and the next

template <BackwardConfig C>
struct Shared {
  uint8_t k[Tiles<C>::K::kBytes];
  uint8_t v[Tiles<C>::V::kBytes];
  uint8_t q[C.q_stages][Tiles<C>::Q::kBytes];
  uint8_t d_o[C.do_stages][Tiles<C>::DO::kBytes];
  uint8_t ds[2][Tiles<C>::DS::kBytes];  // dS of this step and of the one before
  // A block of dQ of each consumer: chunk i of 16 bytes of thread t at [i][t].
  float dq[C.kConsumers][8][128][4];
  uint32_t probabilities[C.wide ? C.tile_q / 16 : 1][C.wide ? 128 : 1][4];  // of each thread
  float lse[C.q_stages][C.tile_q];
  float delta[C.do_stages][C.tile_q];
  tile::RingBarriers<1> k_ring, v_ring;
  tile::RingBarriers<C.q_stages> q_ring;
  tile::RingBarriers<C.do_stages> do_ring;
  tile::RingBarriers<2> ds_ring;  // full only: whoever sees dS i full is past dS i - 1
  // Each consumer's block of dQ is filled for the writer of even or of odd steps.
  uint64_t dq_full[C.kConsumers][2], dq_empty[C.kConsumers];
  tile::RingBarriers<1> probabilities_ring;
  tile::RingBarriers<kWorkStages> work_ring;
  Work work[kWorkStages];
  uint64_t work_wanted;  // the producer will soon have nothing to load

  // One thread, before the CTA's first barrier.
  TW_DEVICE void init_barriers() {
    constexpr uint32_t kWarpgroup = 4 * tile::kArrivalsOfWarp,
                       kConsumers = C.kConsumers * kWarpgroup;
    k_ring.init({1, kConsumers});
    v_ring.init({1, kConsumers});
    q_ring.init({1, kConsumers});
    do_ring.init({1, kConsumers});
    ds_ring.init({C.wide ? kWarpgroup : kConsumers, 1});
    for (int i = 0; i < C.kConsumers; ++i) {
      ptx::mbarrier_init(&dq_full[i][0], kWarpgroup);
      ptx::mbarrier_init(&dq_full[i][1], kWarpgroup);
      ptx::mbarrier_init(&dq_empty[i], 1);
    }
    probabilities_ring.init({kWarpgroup, kWarpgroup});
    work_ring.init({1, kConsumers + 3});  // the producer and two writers
    ptx::mbarrier_init(&work_wanted, 1);
  }
};

// Takes work items in the order in which the producer hands them out.
template <BackwardConfig C>
struct WorkTaker {
  Shared<C>& shared;
  // Consumers are short of registers, and two parities of one bit each fit in the count: twice the
  // items put back, and whether an odd number of them had K and V loaded.
  uint32_t progress = 0;

  // The next item, or null. It stays in shared memory until put back.
  TW_DEVICE const Work* take() const {
    cursor().wait(shared.work_ring);
    const Work* const w = &shared.work[cursor().stage];
    return w->kv_head == kNoMoreWork ? nullptr : w;
  }
  TW_DEVICE void put_back(bool had_keys) {
    cursor().release(shared.work_ring);
    progress = (progress + 2) ^ static_cast<uint32_t>(had_keys);
  }
  TW_DEVICE void put_back_alone() {
    cursor().release_alone(shared.work_ring);
    progress += 2;
  }
  TW_DEVICE tile::RingCursor<kWorkStages> cursor() const {
    return {progress / 2 % kWorkStages, progress / 2 / kWorkStages % 2};
  }
  TW_DEVICE tile::RingCursor<1> keys() const { return {0, progress % 2}; }
};

template <BackwardConfig C>
struct Producer {
  const BackwardParams& p;
  Shared<C>& shared;
  tile::RingCursor<1> k_cursor{}, v_cursor{};
  tile::RingCursor<C.q_stages> q_cursor{};
  tile::RingCursor<C.do_stages> do_cursor{};
  WorkTaker<C> taker{shared};

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

  TW_DEVICE TmaCoordinates kv_at(const Work& w) const {
    const int batch = C.varlen && p.cu_seqlens_kv ? 0 : w.sequence.batch;
    return {0, w.sequence.kv_begin + w.kv_row, w.kv_head, batch};
  }
  TW_DEVICE void load_k(const Work& w) {
    using K = typename Tiles<C>::K;
    uint64_t* const full = k_cursor.acquire(shared.k_ring, K::kBytes);
    load_tile<K>({&p.k, full, ptx::l2_evict_first()}, shared.k, kv_at(w));
    k_cursor.advance();
  }
  TW_DEVICE void load_v(const Work& w) {
    using V = typename Tiles<C>::V;
    uint64_t* const full = v_cursor.acquire(shared.v_ring, V::kBytes);
    load_tile<V>({&p.v, full, ptx::l2_evict_first()}, shared.v, kv_at(w));
    v_cursor.advance();
  }

  struct QueryPlace {
    TmaCoordinates rows;
    const float* g_stats;
  };
  TW_DEVICE QueryPlace queries_at(const Work& w, const StepCursor& step) const {
    const Sequence& s = w.sequence;
    const int head = w.kv_head * p.heads_per_kv + step.head_of_group;
    const int tile = w.q_tile + step.tile;
    const int batch = C.varlen && p.cu_seqlens_q ? 0 : s.batch;
    return {{0, s.q_begin + tile * C.tile_q, head, batch},
            p.stats + (int64_t{head} * p.tiles + s.first_tile + tile) * (2 * C.tile_q)};
  }
  static constexpr int kStatBytes = C.tile_q * 4;
  TW_DEVICE void load_q(const QueryPlace& at) {
    using Q = typename Tiles<C>::Q;
    uint64_t* const full = q_cursor.acquire(shared.q_ring, Q::kBytes + kStatBytes);
    load_tile<Q>({&p.q, full, ptx::l2_evict_last()}, shared.q[q_cursor.stage], at.rows);
    ptx::tma_load_bytes(full, ptx::shared_address(shared.lse[q_cursor.stage]), at.g_stats,
                        kStatBytes);
    q_cursor.advance();
  }
  TW_DEVICE void load_do(const QueryPlace& at) {
    using DO = typename Tiles<C>::DO;
    uint64_t* const full = do_cursor.acquire(shared.do_ring, DO::kBytes + kStatBytes);
    load_tile<DO>({&p.d_o, full, ptx::l2_evict_last()}, shared.d_o[do_cursor.stage], at.rows);
    ptx::tma_load_bytes(full, ptx::shared_address(shared.delta[do_cursor.stage]),
                        at.g_stats + C.tile_q, kStatBytes);
    do_cursor.advance();
  }

  // Steps before the last at which the next work item is sought: not earlier, since an item that is
  // taken and waits is one that a free CTA could have begun.
  static constexpr int kAhead = 2;

  TW_DEVICE void run() {
    bool statistics_ready = false;
    while (const Work* const taken = taker.take()) {
      const Work& w = *taken;
      if (w.steps < kAhead) ptx::mbarrier_arrive(&shared.work_wanted);
      if (w.steps > 0)
        load_v(w);  // of all that the item before still reads, V is free first, K last
      if (!statistics_ready) ptx::wait_for_previous_kernel();
      statistics_ready = true;
      for (StepCursor step = StepCursor::alone(w); step.left > 0; step.advance()) {
        const QueryPlace at = queries_at(w, step);
        load_q(at);
        if (step.left == step.steps) load_k(w);
        load_do(at);
        if (step.left == kAhead) ptx::mbarrier_arrive(&shared.work_wanted);
      }
      taker.put_back_alone();
    }
  }
};

// Works out the work items for all others: it takes longer than they can wait.
template <BackwardConfig C>
TW_DEVICE void hand_out_work(const BackwardParams& p, Shared<C>& shared) {
  tile::RingCursor<kWorkStages> ring{};
  uint32_t phase = 0;
  int index = first_item<C>(p);
  while (true) {
    ring.wait_free(shared.work_ring);
    Work& work = shared.work[ring.stage];
    if (index >= p.work_items)
      work.kv_head = kNoMoreWork;
    else
      make_work<C>(p, index, work);
    ring.publish(shared.work_ring);
    if (index >= p.work_items) return;
    ptx::mbarrier_wait(&shared.work_wanted, phase);
    phase ^= 1;
    index = next_item<C>(p, index);
  }
}

// Adds the consumers' blocks of dQ to its sums in global memory. Two threads do it, one for the
// even steps and one for the odd: by turns, a step's addition has to be seen to be done before the
// next CTA may go on, and that takes about as long as a step.
template <BackwardConfig C>
struct DqWriter {
  static constexpr int kWriters = 2;
  static constexpr bool kFixed = C.additions == Additions::kFixed;

  const BackwardParams& p;
  Shared<C>& shared;
  const uint32_t writer;
  WorkTaker<C> taker{shared};
  uint32_t steps = 0;

  TW_DEVICE void send_block(float* g_tile, int block, bool first) {
    const int consumer = block % C.kConsumers;
    const uint32_t count =  // of the blocks that this consumer filled for this writer
        steps / kWriters * C.dq_blocks_of(consumer) + block / C.kConsumers;
    float* const g_block = g_tile + block * (C.kDqBlockBytes / 4);
    const uint32_t s_block = ptx::shared_address(shared.dq[consumer]);
    ptx::mbarrier_wait(&shared.dq_full[consumer][writer], count % 2);
    if (first)
      ptx::tma_store_bytes(g_block, s_block, C.kDqBlockBytes);
    else
      ptx::tma_reduce_add_f32(g_block, s_block, C.kDqBlockBytes);
    ptx::tma_commit_group();
  }

  // A block of each consumer, or of the first alone.
  TW_DEVICE void send_round(float* g_tile, int round, bool first) {
    const int block = round * C.kConsumers;
    send_block(g_tile, block, first);
    if (block + 1 < C.dq_blocks()) {
      send_block(g_tile, block + 1, first);
      ptx::tma_wait_group_read<1>();
      ptx::mbarrier_arrive(&shared.dq_empty[0]);
      ptx::tma_wait_group_read<0>();
      ptx::mbarrier_arrive(&shared.dq_empty[1]);
    } else {
      ptx::tma_wait_group_read<0>();
      ptx::mbarrier_arrive(&shared.dq_empty[0]);
    }
  }

  TW_DEVICE void send_tile(const Work& w, const StepCursor& step) {
    const int64_t tile = int64_t{w.kv_head * p.heads_per_kv + step.head_of_group} * p.tiles +
                         w.sequence.first_tile + w.q_tile + step.tile;
    float* const g_tile = p.dq_sum + tile * C.dq_elements();
    const int turn = kFixed ? turn_of<C>(w, step) : 0;
#pragma unroll 1
    for (int round = 0; round < C.dq_rounds(); ++round) {
      if constexpr (!kFixed) {
        send_round(g_tile, round, false);
      } else {
        int32_t* const g_turn = p.turns + tile * C.dq_rounds() + round;
        while (ptx::load_acquire(g_turn) != turn) {
        }
        ptx::fence_async_global();
        send_round(g_tile, round, turn == 0);
        ptx::tma_wait_group<0>();  // done, not just read
        ptx::fence_async_global();
        ptx::add_release(g_turn, 1);
      }
    }
  }

  TW_DEVICE void run() {
    ptx::wait_for_previous_kernel();
    while (const Work* const w = taker.take()) {
      for (StepCursor step = StepCursor::alone(*w); step.left > 0; step.advance(), ++steps)
        if (steps % kWriters == writer) send_tile(*w, step);
      taker.put_back_alone();
    }
    ptx::tma_wait_group<0>();
  }
};

}  // namespace tilewise::sm90::backward
