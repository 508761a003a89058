// The consumers of the Hopper backward where no warpgroup can hold dK and dV, for head dims above
// 128, or where modified scores need the registers: one gathers dV, the other dK, of the same 64
// keys.
//
//   values  S^T = K Q^T;   P^T = exp2(scale S^T - LSE), handed over;      dV += P^T dO
//   keys    dP^T = V dO^T; dS^T = P^T * (dP^T - delta), to shared memory;  dK += dS^T Q
//
// Both make blocks of dQ = dS K, of the step before (block round 0) and of the one before that
// (round 1, D > 128): spread over the step, since a consumer has room for one block on its way out.
// P goes over rounded to 16 bits, thread to thread: whoever holds a score of S^T holds the same one
// of dP^T. S of the next step is issued as soon as dV is there, and dO let go then: of dO there is
// room for one tile only at D 256, and the next takes its time to come.
//
// Who may write where: dS i goes where dS i - 2 was. All warps of the keys' side have made their
// own last block of dQ i - 2 by then, for which they meet, and they have P i, which the values'
// side hands over only after its own.
#pragma once

#include "cuda/device/sm90/backward_consumer.h"

namespace tilewise::sm90::backward {

enum class Gathers { kValues, kKeys };

template <BackwardConfig C, Gathers kGathers>
struct WideConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using Base::p, Base::shared, Base::warpgroup, Base::steps;
  using typename Base::DO;
  using typename Base::DqBlock;
  using typename Base::K;
  using typename Base::Operands;
  using typename Base::Q;
  using typename Base::Scores;
  using typename Base::V;

  static constexpr bool kKeys = kGathers == Gathers::kKeys;
  static constexpr int kRounds = C.dq_blocks_of(kKeys);
  // S of the next step is issued before this one's is done with. Modified scores and dropout need
  // the registers.
  static constexpr bool kAhead = !C.modifies_scores() && !C.dropout;

  float sum[(kKeys ? C.head_dim : C.head_dim_v) / 2];  // dK or dV

  TW_DEVICE static constexpr int block_of(int round) { return 2 * round + kKeys; }

  TW_DEVICE void give_probabilities(const Operands& handed_over) {
    auto cursor = this->template cursor_at<1>(steps);
    cursor.wait_free(shared.probabilities_ring);
#pragma unroll
    for (int i = 0; i < C.tile_q / 16; ++i)
      ptx::store_shared(ptx::shared_address(shared.probabilities[i][this->thread_number()]),
                        handed_over[i]);
    ptx::warp_sync();
    tile::warp_arrive(&shared.probabilities_ring.full[0]);
  }
  TW_DEVICE void take_probabilities(Operands& handed_over) {
    auto cursor = this->template cursor_at<1>(steps);
    cursor.wait(shared.probabilities_ring);
#pragma unroll
    for (int i = 0; i < C.tile_q / 16; ++i)
      ptx::load_shared(handed_over[i],
                       ptx::shared_address(shared.probabilities[i][this->thread_number()]));
    ptx::warp_sync();
    cursor.release(shared.probabilities_ring);
  }

  // Round 1 of the step before last, if this consumer has one and the item that step, under the
  // arithmetic of this one.
  template <class Arithmetic>
  TW_DEVICE void late_dq(uint32_t done, Arithmetic&& arithmetic) {
    if (kRounds < 2 || done < 2) {
      ptx::wgmma_wait_group<0>();
      return arithmetic();
    }
    DqBlock dq;
    this->issue_dq(dq, steps - 2, block_of(1));
    ptx::wgmma_wait_group<1>();
    arithmetic();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dq);
    this->write_dq(dq, steps - 2, 1);
    this->publish(this->dq_full(steps - 2));
  }

  TW_DEVICE void dv_is_there(Operands& probabilities) {
    ptx::pin_registers(sum);
    ptx::pin_registers(probabilities);
    this->do_at(steps).release(shared.do_ring);  // there may be one stage only
  }

  // dV += P^T dO, round 0 of the step before, and S of the next step: not before dV is there, for
  // lack of registers, and since the next dO may have to come first (take_queries).
  template <bool kLast>
  TW_DEVICE void add_values(Operands& probabilities, Scores& next, const Work& w,
                            const StepCursor& at, uint32_t done) {
    this->template issue_sum<DO>(sum, probabilities, this->s_do(), done == 0);
    if (kRounds < 1 || done < 1) {
      ptx::wgmma_wait_group<0>();
      dv_is_there(probabilities);
      if constexpr (!kLast) this->begin_scores(next, w, at.next(), steps + 1);
    } else {
      DqBlock dq;
      this->issue_dq(dq, steps - 1, block_of(0));
      ptx::wgmma_wait_group<1>();
      dv_is_there(probabilities);
      if constexpr (!kLast) this->begin_scores(next, w, at.next(), steps + 1);
      ptx::wgmma_wait_group<kLast ? 0 : 1>();
      ptx::pin_registers(dq);
      this->write_dq(dq, steps - 1, 0);
      this->publish(this->dq_full(steps - 1));
    }
    ptx::wgmma_wait_group<0>();
  }

  // The raw scores `s` are there or under way; leaves those of the next step.
  template <bool kMasked, bool kLast>
  TW_DEVICE void values_step(Scores& s, const Work& w, const StepCursor& at, uint32_t done) {
    Scores next;
    Operands probabilities;
    typename Base::Rules rules{p, w.sequence, this->place_of_thread(w, at)};
    late_dq(done, [&] {
      ptx::pin_registers(s);
      rules.make_exponents(s, this->s_lse(steps));
      rules.template make_probabilities<kMasked>(s);
    });
    rules.pack_for_gradients(s, probabilities);
    give_probabilities(probabilities);
    this->q_at(steps).release(shared.q_ring);
    rules.pack_probabilities(s, probabilities);
    this->do_at(steps).wait(shared.do_ring);
    add_values<kLast>(probabilities, next, w, at, done);
    if constexpr (!kLast) {
      ptx::pin_registers(next);
#pragma unroll
      for (int i = 0; i < C.tile_q / 2; ++i) s[i] = next[i];
    }
  }

  // dK += dS^T Q, and before it round 0 of the step before.
  TW_DEVICE void add_keys(Operands& ds, uint32_t done) {
    if (kRounds < 1 || done < 1) {
      this->template issue_sum<Q>(sum, ds, this->s_q(), done == 0);
    } else {
      DqBlock dq;
      this->issue_dq(dq, steps - 1, block_of(0));
      this->template issue_sum<Q>(sum, ds, this->s_q(), false);
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(dq);
      this->write_dq(dq, steps - 1, 0);
      this->publish(this->dq_full(steps - 1));
    }
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(sum);
    ptx::pin_registers(ds);
  }

  TW_DEVICE void keys_step(const Work& w, const StepCursor& at, uint32_t done) {
    Scores dp;
    Operands probabilities, ds;
    this->take_queries(w, at, steps);
    this->do_at(steps).wait(shared.do_ring);
    this->template issue_scores<V, DO>(dp, shared.v, this->s_do());
    typename Base::Rules rules{p, w.sequence, this->place_of_thread(w, at)};
    if constexpr (C.dropout) rules.find_kept();
    late_dq(done, [&] {
      ptx::pin_registers(dp);
      take_probabilities(probabilities);
      rules.pack_score_gradients(probabilities, dp, this->s_delta(), ds);
      this->do_at(steps).release_after_loads(shared.do_ring);  // of delta
    });
    constexpr uint32_t kKeysBarrier = 4;
    ptx::named_barrier_sync(kKeysBarrier, 128);
    this->write_ds(ds);
    this->publish(this->ds_full());
    this->q_at(steps).wait(shared.q_ring);
    add_keys(ds, done);
    this->q_at(steps).release(shared.q_ring);
  }

  template <bool kLast>
  TW_DEVICE void values_step(Scores& s, const Work& w, const StepCursor& at, uint32_t done) {
    if (this->needs_no_mask(w, at))
      values_step<false, kLast>(s, w, at, done);
    else
      values_step<true, kLast>(s, w, at, done);
    ++steps;
  }

  // The steps of an item; how many.
  TW_DEVICE uint32_t gather(const Work& w) {
    uint32_t done = 0;
    StepCursor at = StepCursor::uniform(w);
    if constexpr (kKeys) {
      for (; at.left > 0; at.advance(), ++done, ++steps) keys_step(w, at, done);
    } else if constexpr (kAhead) {
      Scores s;
      this->begin_scores(s, w, at, steps);
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(s);
      for (; at.left > 1; at.advance(), ++done) values_step<false>(s, w, at, done);
      values_step<true>(s, w, at, done++);
    } else {
      for (; at.left > 0; at.advance(), ++done) {
        Scores s;
        this->begin_scores(s, w, at, steps);
        values_step<true>(s, w, at, done);
      }
    }
    return done;
  }

  TW_DEVICE void send_dq(uint32_t of_step, int round) {
    DqBlock dq;
    this->issue_dq(dq, of_step, block_of(round));
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dq);
    this->write_dq(dq, of_step, round);
    this->publish(this->dq_full(of_step));
  }

  // The blocks of dQ that lag behind the item's last step.
  TW_DEVICE void drain(uint32_t done) {
    if (kRounds > 1 && done > 1) send_dq(steps - 2, 1);
    if (kRounds > 0) send_dq(steps - 1, 0);
    if (kRounds > 1) send_dq(steps - 1, 1);
    // The keys' side may write dS of the next item only when both are done with this one's: its
    // first P comes after.
    this->taker.keys().release(shared.k_ring);
    this->taker.keys().release(shared.v_ring);
  }

  TW_DEVICE void run() {
    while (const Work* const w = this->taker.take()) {
      const bool has_keys = ptx::warp_uniform(w->steps) > 0;
      if (has_keys) {
        this->take_keys(*w);
        drain(gather(*w));
        if constexpr (kKeys)
          this->store_dk(*w, sum);
        else
          this->store_dv(*w, sum);
      } else if (!kKeys) {
        this->store_zeros(*w);
      }
      this->taker.put_back(has_keys);
    }
  }
};

}  // namespace tilewise::sm90::backward
