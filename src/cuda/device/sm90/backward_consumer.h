// What the consumers of the Hopper backward have in common: products, the way of dS and dQ through
// shared memory, and the end of a work item.
#pragma once

#include "cuda/device/attention/transposed_scores.h"
#include "cuda/device/ptx/matrix.h"
#include "cuda/device/ptx/shared.h"
#include "cuda/device/ptx/wgmma.h"
#include "cuda/device/sm90/backward_gradients.h"
#include "cuda/device/sm90/backward_producer.h"

namespace tilewise::sm90::backward {

// S^T = K Q^T or dP^T = V dO^T, in flight: 64 keys, from `first_key` on, of all queries of a tile.
template <BackwardConfig C, class Keys, class Queries>
TW_DEVICE void issue_score_products(float (&s)[C.tile_q / 2], int first_key, const uint8_t* s_keys,
                                    const uint8_t* s_queries) {
  using Product = ptx::Wgmma<C.element, C.tile_q>;
  const uint64_t a = Keys{ptx::shared_address(s_keys)}.k_major(first_key);
  const uint64_t b = Queries{ptx::shared_address(s_queries)}.k_major(0);
  ptx::wgmma_fence();
#pragma unroll
  for (int column = 0; column < Keys::kPanels * tile::kPanelColumns; column += 16)
    Product::template ss<ptx::Major::kK>(
        s, tile::step(a, Keys::k_step(column)), tile::step(b, Queries::k_step(column)),
        column == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep);
  ptx::wgmma_commit_group();
}

template <BackwardConfig C>
struct Consumer {
  using Rules = ScoreRules<C>;
  using Scores = float[C.tile_q / 2];           // 64 keys x tile_q
  using Operands = uint32_t[C.tile_q / 16][4];  // the same as A operands
  using DqBlock = float[32];                    // 64 x 64
  using Q = typename Tiles<C>::Q;
  using DO = typename Tiles<C>::DO;
  using K = typename Tiles<C>::K;
  using V = typename Tiles<C>::V;
  using DS = typename Tiles<C>::DS;

  const BackwardParams& p;
  Shared<C>& shared;
  const int warpgroup;
  WorkTaker<C> taker{shared};
  uint32_t steps = 0;  // done, of all items

  // Unsigned, so that dividing it takes one instruction.
  TW_DEVICE static uint32_t thread_number() { return ptx::thread_number() & 127u; }
  // The first of the warpgroup's 64 keys, in the tile.
  TW_DEVICE int first_key() const { return C.wide ? 0 : warpgroup * 64; }

  template <int kStages>
  TW_DEVICE static tile::RingCursor<kStages> cursor_at(uint32_t count) {
    return {count % kStages, count / kStages % 2};
  }
  TW_DEVICE tile::RingCursor<C.q_stages> q_at(uint32_t step) const {
    return cursor_at<C.q_stages>(step);
  }
  TW_DEVICE tile::RingCursor<C.do_stages> do_at(uint32_t step) const {
    return cursor_at<C.do_stages>(step);
  }
  TW_DEVICE const uint8_t* s_q() const { return shared.q[q_at(steps).stage]; }
  TW_DEVICE const uint8_t* s_do() const { return shared.d_o[do_at(steps).stage]; }
  TW_DEVICE const float* s_lse(uint32_t step) const { return shared.lse[q_at(step).stage]; }
  TW_DEVICE const float* s_delta() const { return shared.delta[do_at(steps).stage]; }

  template <class Keys, class Queries>
  TW_DEVICE void issue_scores(Scores& s, const uint8_t* s_keys, const uint8_t* s_queries) const {
    issue_score_products<C, Keys, Queries>(s, first_key(), s_keys, s_queries);
  }

  // dV += P^T dO or dK += dS^T Q, in flight; `first` clears the sum.
  template <class Queries, int kCount>
  TW_DEVICE void issue_sum(float (&sum)[kCount], Operands& a, const uint8_t* s_queries,
                           bool first) {
    using Product = ptx::Wgmma<C.element, kCount * 2>;
    const uint64_t b = Queries{ptx::shared_address(s_queries)}.mn_major();
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C.tile_q / 16; ++step)
      Product::template rs<ptx::Major::kMn>(
          sum, a[step], tile::step(b, Queries::row_step(16 * step)),
          first && step == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep);
    ptx::wgmma_commit_group();
  }

  // A block of dQ = dS K, in flight, as soon as dS of step `of_step` is there.
  TW_DEVICE void issue_dq(DqBlock& dq, uint32_t of_step, int block) {
    using Product = ptx::Wgmma<C.element, 64>;
    const auto cursor = cursor_at<2>(of_step);
    cursor.wait(shared.ds_ring);
    const DS ds{ptx::shared_address(shared.ds[cursor.stage])};
    const uint64_t a = ds.k_major(block / C.dq_panels() * 64);
    const uint64_t b = K{ptx::shared_address(shared.k)}.mn_major(block % C.dq_panels());
    ptx::wgmma_fence();
#pragma unroll
    for (int key = 0; key < C.tile_kv; key += 16)
      Product::template ss<ptx::Major::kMn>(
          dq, tile::step(a, DS::k_step(key)), tile::step(b, K::row_step(key)),
          key == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep);
    ptx::wgmma_commit_group();
  }

  // dS of this step. Keys run along its rows in shared memory, so the 8 x 8 blocks are transposed.
  TW_DEVICE void write_ds(const Operands& ds) {
    const DS ds_tile{ptx::shared_address(shared.ds[cursor_at<2>(steps).stage])};
    const uint32_t thread = thread_number(), lane = thread % 32;
    const uint32_t key = first_key() + thread / 32 * 16 + lane / 8 % 2 * 8;
    const uint32_t first = ds_tile.chunk(lane / 16 * 8 + lane % 8, key);
#pragma unroll
    for (int step = 0; step < C.tile_q / 16; ++step)
      ptx::stmatrix_x4_transposed(first + 16 * step * tile::kRowBytes, ds[step]);
  }
  TW_DEVICE uint64_t* ds_full() const {
    return &shared.ds_ring.full[cursor_at<2>(steps).stage];
  }

  // A block of dQ, `round` of this consumer's in a step, to where its writer fetches it.
  TW_DEVICE void write_dq(const DqBlock& dq, uint32_t of_step, int round) {
    const uint32_t count = of_step * C.dq_blocks_of(warpgroup) + round;
    ptx::mbarrier_wait(&shared.dq_empty[warpgroup], (count + 1) % 2);  // the block before it
    const uint32_t s_block = ptx::shared_address(shared.dq[warpgroup]) + thread_number() * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      ptx::store_shared(s_block + i * 2048, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
  }
  TW_DEVICE uint64_t* dq_full(uint32_t of_step) const {
    return &shared.dq_full[warpgroup][of_step % 2];
  }

  // Makes this warp's part of what it wrote seen; several at once, since the fence waits for every
  // store.
  template <class... Barriers>
  TW_DEVICE static void publish(Barriers*... full) {
    ptx::fence_async_shared();
    ptx::warp_sync();
    (tile::warp_arrive(full), ...);
  }

  TW_DEVICE ScorePlace place_of_thread(const Work& w, const StepCursor& at) const {
    const uint32_t thread = thread_number();
    return {w.kv_row + first_key() + static_cast<int>(thread / 32 * 16 + thread % 32 / 4),
            (w.q_tile + at.tile) * C.tile_q + static_cast<int>(thread % 4 * 2),
            w.kv_head * p.heads_per_kv + at.head_of_group};
  }
  TW_DEVICE bool needs_no_mask(const Work& w, const StepCursor& at) const {
    return all_visible<C>(w.sequence, ptx::warp_uniform(w.kv_row) + first_key(),
                          (ptx::warp_uniform(w.q_tile) + at.tile) * C.tile_q);
  }

  // Rows past the end of a packed sequence belong to someone else and may hold NaN; what they are
  // multiplied with is 0, but 0 * NaN is not. Both consumers read every row.
  template <class Tile>
  TW_DEVICE void clear_rows(const uint8_t* s_tile, int rows_used) const {
    Tile{ptx::shared_address(s_tile)}.clear_rows(
        max_of(rows_used, 0), warpgroup * 128 + static_cast<int>(thread_number()), 256);
  }
  TW_DEVICE static void everyone_cleared() {
    constexpr uint32_t kClearBarrier = 3;  // 1 and 2: turns
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kClearBarrier, 256);
  }
  TW_DEVICE void take_keys(const Work& w) {
    taker.keys().wait(shared.v_ring);
    taker.keys().wait(shared.k_ring);
    const int rows_used = ptx::warp_uniform(w.sequence.seq_kv - w.kv_row);
    if (!C.varlen || rows_used >= C.tile_kv) return;
    clear_rows<K>(shared.k, rows_used);
    clear_rows<V>(shared.v, rows_used);
    everyone_cleared();
  }
  TW_DEVICE void take_queries(const Work& w, const StepCursor& at, uint32_t step) {
    if constexpr (!C.varlen) return;
    const int rows_used = ptx::warp_uniform(w.sequence.seq_q - (w.q_tile + at.tile) * C.tile_q);
    if (rows_used >= C.tile_q) return;
    q_at(step).wait(shared.q_ring);
    do_at(step).wait(shared.do_ring);
    clear_rows<Q>(shared.q[q_at(step).stage], rows_used);
    clear_rows<DO>(shared.d_o[do_at(step).stage], rows_used);
    everyone_cleared();
  }

  // S of a step, in flight, as soon as its queries are there.
  TW_DEVICE void begin_scores(Scores& s, const Work& w, const StepCursor& at, uint32_t step) {
    take_queries(w, at, step);
    q_at(step).wait(shared.q_ring);
    issue_scores<K, Q>(s, shared.k, shared.q[q_at(step).stage]);
  }

  TW_DEVICE GradientRows rows_of(const Work& w, const RowTensor& to, int columns) const {
    const Sequence& s = w.sequence;
    const int row = w.kv_row + first_key();
    return {first_row(to, s.batch, w.kv_head, int64_t{s.kv_begin} + row), to.stride_s,
            s.kv_slot - row, columns};
  }
  TW_DEVICE void store_dk(const Work& w, const float (&dk)[C.head_dim / 2]) const {
    store_gradient<C.element>(rows_of(w, p.dk, p.head_dim), 0, dk, p.scale);
  }
  TW_DEVICE void store_dv(const Work& w, const float (&dv)[C.head_dim_v / 2]) const {
    store_gradient<C.element>(rows_of(w, p.dv, p.head_dim_v), 0, dv,
                              C.dropout ? p.dropout_scale : 1.0f);
  }
  // For keys that no query sees.
  TW_DEVICE void store_zeros(const Work& w) const {
    const float zeros[32] = {};
    for (int column = 0; column < C.head_dim; column += 64)
      store_gradient<C.element>(rows_of(w, p.dk, p.head_dim), column, zeros, 1.0f);
    for (int column = 0; column < C.head_dim_v; column += 64)
      store_gradient<C.element>(rows_of(w, p.dv, p.head_dim_v), column, zeros, 1.0f);
  }
};

}  // namespace tilewise::sm90::backward
