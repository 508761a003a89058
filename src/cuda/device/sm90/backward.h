// The main kernel of the Hopper backward: one persistent CTA a multiprocessor, warp-specialized.
// K and V of a key tile stay; Q and dO of the query tiles that see it pass by.
//
//   warpgroup 0      one thread loads by TMA, one sends dQ away (backward_producer.h)
//   warpgroups 1, 2  consumers: 64 keys each; for every query tile i
//                      S^T = K Q^T;  dP^T = V dO^T
//                      P^T = exp2(scale S^T - LSE);  dS^T = P^T * (dP^T - delta)
//                      dV += P^T dO;  dK += dS^T Q;  dQ = dS K  (64 x 64 of it)
//
// Transposed, P and dS feed dV and dK straight from registers; dS passes through shared memory only
// for dQ, which wants the keys of both consumers. That product lags a step behind, so neither
// consumer waits for the other, and every stretch of arithmetic has products of its own to run
// under: P under dP, dS under dV, what becomes of dS and dQ under dK.
//
// Registers of a consumer thread: dK D/2, dV Dv/2, S and dP tile_q/2 each, P and dS tile_q/4 each
// (never both), dQ 32 (when S and dP are gone); D = 128: 128 + 64 + 16 of 240. Shared memory:
// backward_config.h adds it up. docs/backward_sm90.md has the rest.
#pragma once

#include "cuda/device/attention/transposed_scores.h"
#include "cuda/device/ptx/matrix.h"
#include "cuda/device/ptx/shared.h"
#include "cuda/device/ptx/wgmma.h"
#include "cuda/device/sm90/backward_gradients.h"
#include "cuda/device/sm90/backward_producer.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct Consumer {
  using Scores = ptx::Wgmma<C.element, C.tile_q>;
  using Rules = ScoreRules<C>;
  using ScoreTile = float[C.tile_q / 2];            // 64 keys x tile_q
  using Operands = uint32_t[C.tile_q / 16][4];      // the same as A operands
  using DqBlock = float[32];                        // 64 x 64

  const BackwardParams& p;
  Shared<C>& shared;
  const int warpgroup;
  WorkTaker<C> taker{shared};
  uint32_t items = 0;  // done, of those with steps
  uint32_t steps = 0;  // done, of all items
  float dk[C.head_dim / 2], dv[C.head_dim_v / 2];
  Operands ds;

  // Unsigned, so that dividing it takes one instruction.
  TW_DEVICE static uint32_t thread_number() { return ptx::thread_number() & 127u; }
  TW_DEVICE int key_of_thread() const {
    const uint32_t thread = thread_number();
    return warpgroup * 64 + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
  }
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

  // S^T = K Q^T and dP^T = V dO^T, in flight.
  template <class Keys, class Queries>
  TW_DEVICE void issue_scores(ScoreTile& s, const uint8_t* s_keys, const uint8_t* s_queries) {
    const Keys keys{ptx::shared_address(s_keys)};
    const Queries queries{ptx::shared_address(s_queries)};
    const uint64_t a = keys.k_major(warpgroup * 64), b = queries.k_major(0);
    ptx::wgmma_fence();
#pragma unroll
    for (int column = 0; column < Keys::kPanels * tile::kPanelColumns; column += 16)
      Scores::template ss<ptx::Major::kK>(
          s, tile::step(a, Keys::k_step(column)), tile::step(b, Queries::k_step(column)),
          column == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep);
    ptx::wgmma_commit_group();
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

  // This consumer's block of dQ = dS K for the step before, in flight: half of the queries, or half
  // of the columns.
  TW_DEVICE void issue_dq(DqBlock& dq) {
    using Product = ptx::Wgmma<C.element, 64>;
    using DS = typename Tiles<C>::DS;
    using K = typename Tiles<C>::K;
    const auto cursor = cursor_at<2>(steps - 1);
    cursor.wait(shared.ds_ring);
    const DS ds_tile{ptx::shared_address(shared.ds[cursor.stage])};
    const K k{ptx::shared_address(shared.k)};
    constexpr bool kByRows = C.tile_q == 128;
    const uint64_t a = ds_tile.k_major(kByRows ? warpgroup * 64 : 0);
    const uint64_t b = k.mn_major(kByRows ? 0 : warpgroup);
    ptx::wgmma_fence();
#pragma unroll
    for (int key = 0; key < C.tile_kv; key += 16)
      Product::template ss<ptx::Major::kMn>(
          dq, tile::step(a, DS::k_step(key)), tile::step(b, K::row_step(key)),
          key == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep);
    ptx::wgmma_commit_group();
  }

  // Keys run along the rows of dS in shared memory, so the 8 x 8 blocks are transposed.
  TW_DEVICE void store_ds() {
    auto cursor = cursor_at<2>(steps);
    const typename Tiles<C>::DS ds_tile{ptx::shared_address(shared.ds[cursor.stage])};
    const uint32_t thread = thread_number(), lane = thread % 32;
    const uint32_t key = warpgroup * 64 + thread / 32 * 16 + lane / 8 % 2 * 8;
    const uint32_t first = ds_tile.chunk(lane / 16 * 8 + lane % 8, key);
#pragma unroll
    for (int step = 0; step < C.tile_q / 16; ++step)
      ptx::stmatrix_x4_transposed(first + 16 * step * tile::kRowBytes, ds[step]);
    cursor.publish_part(shared.ds_ring);
  }

  TW_DEVICE void store_dq(const DqBlock& dq) {
    auto cursor = cursor_at<1>(steps - 1);  // whose dQ it is
    auto& ring = shared.dq_ring[warpgroup];
    cursor.wait_free(ring);
    const uint32_t s_block =
        ptx::shared_address(shared.dq[warpgroup]) + thread_number() * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      ptx::store_shared(s_block + i * 2048, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2],
                        dq[4 * i + 3]);
    cursor.publish_part(ring);
  }

  // One query tile. kMasked: some scores are hidden; `first`: of the work item.
  template <bool kMasked>
  TW_DEVICE void step(const Work& w, const StepCursor& at, bool first) {
    using Q = typename Tiles<C>::Q;
    using DO = typename Tiles<C>::DO;
    const uint32_t q_stage = q_at(steps).stage, do_stage = do_at(steps).stage;
    ScoreTile s, dp;
    issue_scores<typename Tiles<C>::K, Q>(s, shared.k, shared.q[q_stage]);
    do_at(steps).wait(shared.do_ring);
    issue_scores<typename Tiles<C>::V, DO>(dp, shared.v, shared.d_o[do_stage]);
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(s);

    Rules rules{p, w.sequence, place_of_thread(w, at)};
    Operands probabilities;
    rules.template make_probabilities<kMasked>(s, shared.lse[q_stage]);
    rules.pack_probabilities(s, probabilities);
    issue_sum<DO>(dv, probabilities, shared.d_o[do_stage], first);

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(dp);
    if (at.left == 1) cursor_at<1>(items).release(shared.v_ring);
    rules.pack_score_gradients(s, probabilities, dp, shared.delta[do_stage], ds);
    if (first) {
      issue_sum<Q>(dk, ds, shared.q[q_stage], true);
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(probabilities);
      store_ds();
    } else {
      DqBlock dq;
      issue_dq(dq);
      issue_sum<Q>(dk, ds, shared.q[q_stage], false);
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(dq);
      ptx::pin_registers(probabilities);
      store_ds();
      store_dq(dq);
    }
    do_at(steps).release(shared.do_ring);
    // Left under way into the next step, dK would cost registers that aren't there.
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    ptx::pin_registers(ds);
    q_at(steps).release(shared.q_ring);
    ++steps;
  }

  TW_DEVICE ScorePlace place_of_thread(const Work& w, const StepCursor& at) const {
    return {w.kv_row + key_of_thread(),
            (w.q_tile + at.tile) * C.tile_q + static_cast<int>(thread_number() % 4 * 2),
            w.kv_head * p.heads_per_kv + at.head_of_group};
  }

  // Rows past the end of a packed sequence belong to someone else and may hold NaN; what they are
  // multiplied with is 0, but 0 * NaN is not. Both consumers read every row.
  template <class Tile>
  TW_DEVICE void clear_rows(const uint8_t* s_tile, int rows_used) const {
    Tile{ptx::shared_address(s_tile)}.clear_rows(max_of(rows_used, 0),
                                                 warpgroup * 128 + static_cast<int>(thread_number()),
                                                 256);
  }
  TW_DEVICE static void everyone_cleared() {
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kClearBarrier, 256);
  }
  static constexpr uint32_t kClearBarrier = 1;

  TW_DEVICE void take_keys(const Work& w) {
    cursor_at<1>(items).wait(shared.v_ring);
    cursor_at<1>(items).wait(shared.k_ring);
    const int rows_used = ptx::warp_uniform(w.sequence.seq_kv - w.kv_row);
    if (!C.varlen || rows_used >= C.tile_kv) return;
    clear_rows<typename Tiles<C>::K>(shared.k, rows_used);
    clear_rows<typename Tiles<C>::V>(shared.v, rows_used);
    everyone_cleared();
  }
  TW_DEVICE void take_queries(const Work& w, const StepCursor& at) {
    q_at(steps).wait(shared.q_ring);
    if constexpr (!C.varlen) return;
    const int rows_used =
        ptx::warp_uniform(w.sequence.seq_q - (w.q_tile + at.tile) * C.tile_q);
    if (rows_used >= C.tile_q) return;
    do_at(steps).wait(shared.do_ring);
    clear_rows<typename Tiles<C>::Q>(shared.q[q_at(steps).stage], rows_used);
    clear_rows<typename Tiles<C>::DO>(shared.d_o[do_at(steps).stage], rows_used);
    everyone_cleared();
  }

  // dQ of the last step.
  TW_DEVICE void drain() {
    DqBlock dq;
    issue_dq(dq);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dq);
    cursor_at<1>(items).release(shared.k_ring);
    store_dq(dq);
  }

  // 64 rows of dK or dV.
  template <int kCount>
  TW_DEVICE void store(const Work& w, const RowTensor& to, int columns,
                       const float (&sum)[kCount], float scale) const {
    const Sequence& s = w.sequence;
    const int row = w.kv_row + warpgroup * 64;
    uint16_t* const g_first = first_row(to, s.batch, w.kv_head, int64_t{s.kv_begin} + row);
    store_gradient<C.element>({g_first, to.stride_s, s.kv_slot - row, columns}, 0, sum, scale);
  }

  // 64 rows of dK and dV for keys that no query sees.
  TW_DEVICE void store_nothing(const Work& w) const {
    const float zeros[32] = {};
    for (int column = 0; column < max_of(C.head_dim, C.head_dim_v); column += 64) {
      const Sequence& s = w.sequence;
      const int row = w.kv_row + warpgroup * 64;
      const auto clear = [&](const RowTensor& to, int columns) {
        uint16_t* const g_first = first_row(to, s.batch, w.kv_head, int64_t{s.kv_begin} + row);
        store_gradient<C.element>({g_first, to.stride_s, s.kv_slot - row, columns}, column, zeros,
                                  1.0f);
      };
      clear(p.dk, p.head_dim);
      clear(p.dv, p.head_dim_v);
    }
  }

  TW_DEVICE void gather(const Work& w) {
    take_keys(w);
    bool first = true;
    for (StepCursor at = StepCursor::uniform(w); at.left > 0; at.advance()) {
      take_queries(w, at);
      const int key = ptx::warp_uniform(w.kv_row) + warpgroup * 64;
      const int query = (ptx::warp_uniform(w.q_tile) + at.tile) * C.tile_q;
      if (all_visible<C>(w.sequence, key, query))
        step<false>(w, at, first);
      else
        step<true>(w, at, first);
      first = false;
    }
    drain();
    ++items;
  }

  TW_DEVICE void run() {
    while (const Work* const w = taker.take()) {
      if (ptx::warp_uniform(w->steps) == 0) {
        store_nothing(*w);
      } else {
        gather(*w);
        store(*w, p.dk, p.head_dim, dk, p.scale);
        store(*w, p.dv, p.head_dim_v, dv, C.dropout ? p.dropout_scale : 1.0f);
      }
      taker.put_back();
    }
  }
};

template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void main_kernel(const BackwardParams& p) {
  extern __shared__ __align__(1024) uint8_t s_memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(s_memory);
  static_assert(sizeof(Shared<C>) <= C.smem_bytes(), "smem_bytes() counts what Shared holds");

  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&p.q, &p.d_o, &p.k, &p.v}) ptx::tma_prefetch_map(map);
    shared.init_barriers();
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int warpgroup = ptx::warp_uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::registers_decrease<C.kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>{p, shared}.run();
    if (threadIdx.x == 32) DqWriter<C>{p, shared}.run();
    if (threadIdx.x == 64) hand_out_work<C>(p, shared);
  } else {
    ptx::registers_increase<C.kConsumerRegisters>();
    Consumer<C>{p, shared, warpgroup - 1}.run();
  }
}

}  // namespace tilewise::sm90::backward
