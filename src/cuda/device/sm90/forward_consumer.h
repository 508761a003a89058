// The consumers of the Hopper forward: one warpgroup, 64 query rows.
#pragma once

#include "cuda/device/attention/exponents.h"
#include "cuda/device/attention/scores.h"
#include "cuda/device/attention/softmax.h"
#include "cuda/device/attention/work.h"
#include "cuda/device/ptx/matrix.h"
#include "cuda/device/ptx/wgmma.h"
#include "cuda/device/sm90/forward_epilogue.h"
#include "cuda/device/sm90/forward_producer.h"
#include "cuda/device/tile/turn.h"

namespace tilewise::sm90 {

template <ForwardConfig C>
struct Consumer {
  using Qk = ptx::Wgmma<C.element, C.tile_kv>;
  using Pv = ptx::Wgmma<C.element, C.head_dim_v>;
  using ScoreTile = float[C.tile_kv / 2];

  const ForwardParams& p;
  Shared<C>& shared;
  const int warpgroup;
  tile::Turn<C.ping_pong ? C.consumers() : 1> turn;
  tile::RingCursor<C.q_stages> q_cursor{};
  tile::RingCursor<C.stages> k_cursor{}, v_cursor{};
  uint32_t works_taken = 0;  // one register, where a cursor has two
  KvTiles kv;                // of the work at hand
  RowPair rows;
  float o[C.head_dim_v / 2];                  // 64 x Dv, unnormalized
  uint32_t probabilities[C.tile_kv / 16][4];  // 64 x tile_kv as A operands
  Alibi<C> alibi;                             // of the work whose scores come next
  uint32_t q_operands[C.q_in_registers ? C.head_dim / 16 : 1][4];

  TW_DEVICE static int thread_number() { return ptx::thread_number() % 128; }
  TW_DEVICE Place place(const Work& w) const {
    const int thread = thread_number();
    return place_of<C>(w, warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4, thread % 4);
  }

  // Waits for Q; kept in registers, it is read from shared memory once and may go at once.
  TW_DEVICE void take_q() {
    q_cursor.wait(shared.q_ring);
    if constexpr (C.q_in_registers) {
      const typename Tiles<C>::Q q{ptx::shared_address(shared.q[q_cursor.stage])};
      const int thread = thread_number();
      const int row = warpgroup * 64 + thread / 32 * 16 + thread % 16;
#pragma unroll
      for (int step = 0; step < C.head_dim / 16; ++step)
        ptx::ldmatrix_x4(q_operands[step], q.chunk(row, 16 * step + thread % 32 / 16 * 8));
      q_cursor.release_after_loads(shared.q_ring);
    }
  }

  // The descriptors of the K and V at hand. Cursors that loops over a band's tiles have moved are
  // not known to be uniform, and every product would fetch its descriptor through R2UR.
  TW_DEVICE static uint32_t uniform_address(const uint8_t* s_tile) {
    const uint32_t address = ptx::shared_address(s_tile);
    return C.band == Band::kFull ? address : ptx::warp_uniform(address);
  }
  TW_DEVICE uint64_t k_descriptor() const {
    return typename Tiles<C>::K{uniform_address(shared.k[k_cursor.stage])}.k_major(0);
  }
  TW_DEVICE uint64_t v_descriptor() const {
    return typename Tiles<C>::V{uniform_address(shared.v[v_cursor.stage])}.mn_major();
  }

  // S = Q K^T, 64 x tile_kv, in flight.
  TW_DEVICE void issue_scores(uint64_t k0, ScoreTile& s) {
    const typename Tiles<C>::Q q{ptx::shared_address(shared.q[q_cursor.stage])};
    const uint64_t q0 = q.k_major(warpgroup * 64);
    ptx::pin_registers(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int column = 0; column < C.head_dim; column += 16) {
      const auto accumulate = column == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep;
      const uint64_t k_desc = k0 + Tiles<C>::K::k_step(column);
      if constexpr (C.q_in_registers)
        Qk::template rs<ptx::Major::kK>(s, q_operands[column / 16], k_desc, accumulate);
      else
        Qk::template ss<ptx::Major::kK>(s, q0 + Tiles<C>::Q::k_step(column), k_desc, accumulate);
    }
    if constexpr (C.defers_alibi()) alibi.issue(s, ptx::shared_address(&shared.column_numbers));
    ptx::wgmma_commit_group();
  }

  // O += P V, in flight.
  TW_DEVICE void issue_values(uint64_t v0) {
    ptx::pin_registers(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C.tile_kv / 16; ++step)
      Pv::template rs<ptx::Major::kMn>(
          o, probabilities[step], v0 + Tiles<C>::V::row_step(16 * step), ptx::Accumulate::kKeep);
    ptx::wgmma_commit_group();
  }

  // Hides what the mask hides, and makes scores of products, unless that is left to their
  // exponents.
  template <Scores kScores>
  TW_DEVICE void shape_scores(const Work& w, int tile, const Besides<C>& besides, ScoreTile& s) {
    const int kv_row = tile * C.tile_kv;
    if constexpr (!C.defers_alibi()) besides.modify(p, w, place(w), kv_row, s);
    if constexpr (kScores == Scores::kMayBeHidden) apply_mask<C>(w, place(w), kv_row, s);
  }
  // The rows' maxima, of scores that are complete now.
  TW_DEVICE void complete_maxima(const Work& w, int tile, ScoreTile& s, float (&top)[2]) const {
    if constexpr (C.defers_alibi()) alibi.complete(p, w, place(w), tile * C.tile_kv, s);
    row_maxima(s, top);
  }

  // Scores become probabilities, are summed, and rounded to A operands: one block of code, so that
  // everything else is issued in the shadow of the exponentials.
  template <Scores kScores>
  TW_DEVICE void make_probabilities(const Besides<C>& besides, ScoreTile& s,
                                    Exponents<C>& exponents) {
    constexpr Scores kKind = C.bias != BiasType::kNone ? Scores::kMayBeHidden : kScores;
    exponents.prepare(kKind);
    exponentiate<kKind, C.polynomial_of_8>(s, exponents, rows.sum);
#pragma unroll
    for (int step = 0; step < C.tile_kv / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        probabilities[step][i] = ptx::pack<C.element>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    if constexpr (C.dropout) besides.dropped.drop(probabilities);
  }

  // A row's first top is its first tile's maximum.
  TW_DEVICE Exponents<C> start_rows(const Work& w, int tile, ScoreTile& s) {
    complete_maxima(w, tile, s, rows.top);
    rows.sum[0] = rows.sum[1] = 0.0f;
    Exponents<C> exponents(p, rows);
    if (ptx::warp_any(is_far(exponents.shift[0]) || is_far(exponents.shift[1])))
      take_off_far(s, rows.top, exponents.shift);
    return exponents;
  }

  // Lets the tops follow the maxima; O is to follow by `factor`. Seldom needed; but the branch
  // around it is what keeps ptxas from waiting for O before the maxima, and from taking
  // exponentials before that.
  TW_DEVICE void follow(const Work& w, int tile, ScoreTile& s, Exponents<C>& exponents,
                        float (&factor)[2]) {
    float seen[2];
    complete_maxima(w, tile, s, seen);
    for (int r = 0; r < 2; ++r) factor[r] = move_top(rows, r, seen[r], score_scale<C>(p));
    exponents = Exponents<C>(p, rows);
    take_off_far(s, rows.top, exponents.shift);
  }
  TW_DEVICE void rescale_output(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) o[i] *= factor[i / 2 % 2];
  }

  // Rows past the end of a packed sequence belong to someone else and may hold NaN; their
  // probabilities are 0, but 0 * NaN is not. Every consumer clears them for itself.
  TW_DEVICE void clear_foreign_values(const Work& w) const {
    v_cursor.wait(shared.v_ring);
    const int rows_used = w.seq_kv - (kv.end - 1) * C.tile_kv;
    if (rows_used >= C.tile_kv) return;
    const typename Tiles<C>::V v{ptx::shared_address(shared.v[v_cursor.stage])};
    v.clear_rows(rows_used, thread_number(), 128);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kClearBarrier + warpgroup, 128);
  }
  static constexpr uint32_t kClearBarrier = 8;

  TW_DEVICE void clear_output() {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) o[i] = 0.0f;
  }

  // The scores of key tile `tile` have been formed: K, and after the last one Q, may go.
  TW_DEVICE void release_operands(int tile) {
    k_cursor.release(shared.k_ring);
    if (!C.q_in_registers && tile == kv.begin) q_cursor.release(shared.q_ring);
  }

  // Told to be uniform, so that loops over tiles are.
  TW_DEVICE KvTiles tiles_of(int slot) const {
    const KvTiles& t = shared.tiles[slot][warpgroup];
    return {ptx::warp_uniform(t.begin), ptx::warp_uniform(t.end), ptx::warp_uniform(t.full_begin),
            ptx::warp_uniform(t.full_end)};
  }

  // Key tiles that other consumers of the CTA see and this one doesn't: it lets them, and its turn,
  // go by.
  TW_DEVICE void skip_keys(const Work& w) {
    if constexpr (C.band == Band::kFull) return;
    for (int tile = ptx::warp_uniform(w.kv_end_tile); tile > kv.end; --tile) {
      k_cursor.wait(shared.k_ring);
      turn.wait();
      turn.pass();
      k_cursor.release(shared.k_ring);
    }
  }
  TW_DEVICE void skip_values(const Work& w) {
    if constexpr (C.band == Band::kFull) return;
    for (int tile = ptx::warp_uniform(w.kv_end_tile); tile > kv.end; --tile) {
      v_cursor.wait(shared.v_ring);
      v_cursor.release(shared.v_ring);
    }
  }

  // The CTA's first key tile: nothing to overlap with yet.
  TW_DEVICE void first_step(const Work& w) {
    ScoreTile s;
    skip_keys(w);
    take_q();
    alibi.take_slopes(p, w, place(w));
    alibi.face(w, (kv.end - 1) * C.tile_kv);
    k_cursor.wait(shared.k_ring);
    issue_scores(k_descriptor(), s);
    Besides<C> besides;
    besides.prepare(p, w, place(w), (kv.end - 1) * C.tile_kv);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(s);
    release_operands(kv.end - 1);
    shape_scores<Scores::kMayBeHidden>(w, kv.end - 1, besides, s);
    auto exponents = start_rows(w, kv.end - 1, s);
    clear_output();
    make_probabilities<Scores::kMayBeHidden>(besides, s, exponents);
  }

  // Issues the scores of the tile at hand and the values of the tile before it.
  TW_DEVICE void issue_pair(ScoreTile& s) {
    const uint64_t k0 = k_descriptor(), v0 = v_descriptor();  // before the turn, which is precious
    k_cursor.wait(shared.k_ring);
    turn.wait();
    issue_scores(k0, s);
    v_cursor.wait(shared.v_ring);
    issue_values(v0);
    turn.pass();
  }

  TW_DEVICE void wait_scores(int tile, ScoreTile& s) {
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(s);
    release_operands(tile);
  }

  TW_DEVICE void wait_values() {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(o);
  }

  template <Scores kScores>
  TW_DEVICE void step(const Work& w, int tile) {
    ScoreTile s;
    Besides<C> besides;
    alibi.face(w, tile * C.tile_kv);
    issue_pair(s);
    besides.prepare(p, w, place(w), tile * C.tile_kv);
    wait_scores(tile, s);
    shape_scores<kScores>(w, tile, besides, s);
    Exponents<C> exponents(p, rows);
    if constexpr (C.defers_alibi()) exponents.add_base(p, alibi, w, place(w), tile * C.tile_kv);
    // Of this warp. All of a warpgroup must wait for O in one place.
    const bool tops_move = ptx::warp_any(!exponents.suffice(s));
    float factor[2];
    if (tops_move) follow(w, tile, s, exponents, factor);
    wait_values();
    v_cursor.release(shared.v_ring);
    make_probabilities<kScores>(besides, s, exponents);
    if (tops_move) rescale_output(factor);
  }

  // From one work item to the next without draining the tensor cores: the last values of w are
  // summed, and its output is stored, beside the first scores of `next`.
  TW_DEVICE void bridge(const Work& w, const Work& next) {
    skip_keys(next);
    take_q();
    // Code for hidden scores is left out where it can be: it is half as much again.
    if (C.band != Band::kFull || kv.partial(kv.end - 1))
      bridge_over<Scores::kMayBeHidden>(w, next);
    else
      bridge_over<Scores::kAllVisible>(w, next);
  }

  template <Scores kScores>
  TW_DEVICE void bridge_over(const Work& w, const Work& next) {
    ScoreTile s;
    float scale[2];
    finish_statistics(w, scale);  // before S takes its registers
    Besides<C> besides;
    alibi.take_slopes(p, next, place(next));
    alibi.face(next, (kv.end - 1) * C.tile_kv);
    issue_pair(s);
    besides.prepare(p, next, place(next), (kv.end - 1) * C.tile_kv);
    wait_scores(kv.end - 1, s);
    shape_scores<kScores>(next, kv.end - 1, besides, s);
    auto exponents = start_rows(next, kv.end - 1, s);
    wait_values();
    v_cursor.release(shared.v_ring);
    store_output<C>(p, w, place(w), o, scale);
    clear_output();
    make_probabilities<kScores>(besides, s, exponents);
  }

  // The key tiles of w after its first.
  TW_DEVICE void middle_steps(const Work& w) {
    skip_values(w);
    if constexpr (C.varlen) clear_foreign_values(w);
    int tile = kv.end - 2;
    if constexpr (C.band != Band::kFull)
      for (; tile >= kv.full_end && tile >= kv.begin; --tile) step<Scores::kMayBeHidden>(w, tile);
    for (; tile >= kv.full_begin; --tile) step<Scores::kAllVisible>(w, tile);
    if constexpr (C.band == Band::kBoth)
      for (; tile >= kv.begin; --tile) step<Scores::kMayBeHidden>(w, tile);
  }

  TW_DEVICE void last_values(const Work& w) {
    float scale[2];
    v_cursor.wait(shared.v_ring);
    issue_values(v_descriptor());
    finish_statistics(w, scale);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(o);
    store_output<C>(p, w, place(w), o, scale);
  }

  TW_DEVICE void finish_statistics(const Work& w, float (&scale)[2]) const {
    float lse2[2];
    finish_rows<C>(p, w, place(w), rows, scale, lse2);
    store_lse<C>(p, w, place(w), lse2);
  }

  // The slot of the next work item, or kNoMoreWork. The work stays in shared memory until put back,
  // since registers are what a consumer has least of.
  TW_DEVICE int take_work() {
    const tile::RingCursor<kWorkStages> at{works_taken % kWorkStages,
                                           works_taken / kWorkStages % 2};
    at.wait(shared.work_ring);
    ++works_taken;
    const int slot = static_cast<int>(at.stage);
    if (ptx::warp_uniform(shared.work[slot].q_row) != kNoMoreWork) return slot;
    put_back(slot);
    return kNoMoreWork;
  }
  TW_DEVICE void put_back(int slot) {
    tile::warp_arrive(&shared.work_ring.empty[slot]);
  }

  TW_DEVICE void run() {
    turn.open();
    run_seen();
    for (int slot = take_work(); slot != kNoMoreWork; slot = take_work()) {
      store_unseen<C>(p, shared.work[slot], place(shared.work[slot]));
      put_back(slot);
    }
  }

  // The slots of the works at hand follow from how many were taken: no registers to keep them in.
  TW_DEVICE int slot_of(int works_ago) const {
    return (works_taken - 1 - works_ago) % kWorkStages;
  }

  TW_DEVICE void run_seen() {
    if (take_work() == kNoMoreWork) return;
    kv = tiles_of(slot_of(0));
    first_step(shared.work[slot_of(0)]);
    while (true) {
      middle_steps(shared.work[slot_of(0)]);
      if (take_work() == kNoMoreWork) break;
      kv = tiles_of(slot_of(0));
      bridge(shared.work[slot_of(1)], shared.work[slot_of(0)]);
      put_back(slot_of(1));
    }
    last_values(shared.work[slot_of(1)]);
    put_back(slot_of(1));
  }
};

}  // namespace tilewise::sm90
