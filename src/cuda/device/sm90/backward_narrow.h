// The consumers of the Hopper backward for head dims up to 128 and scores that nothing is done to:
// each gathers dK and dV of 64 keys.
//
// dS passes through shared memory only for dQ, which wants the keys of both consumers. That product
// lags a step behind, so neither consumer waits for the other, and every stretch of arithmetic has
// products of its own to run under: P under dP, dS under dV, what becomes of dS and dQ under dK.
//
// Registers of a thread: dK D/2, dV Dv/2, S and dP tile_q/2 each, P and dS tile_q/4 each (never
// both), dQ 32 (when S and dP are gone); D = 128: 128 + 64 + 16 of 232. Left under way into the
// next step, dK would cost registers that aren't there.
#pragma once

#include "cuda/device/sm90/backward_consumer.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct NarrowConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using Base::p, Base::shared, Base::warpgroup, Base::steps;
  using typename Base::DO;
  using typename Base::DqBlock;
  using typename Base::K;
  using typename Base::Operands;
  using typename Base::Q;
  using typename Base::Scores;
  using typename Base::V;

  float dk[C.head_dim / 2], dv[C.head_dim_v / 2];

  // What the products of a step leave behind, `dk` still under way: dS, and dQ of the step before.
  TW_DEVICE void hand_on(Operands& ds, bool first) {
    if (first) {
      this->template issue_sum<Q>(dk, ds, this->s_q(), true);
      ptx::wgmma_wait_group<1>();
      this->write_ds(ds);
      this->publish(this->ds_full());
    } else {
      DqBlock dq;
      this->issue_dq(dq, steps - 1, warpgroup);
      this->template issue_sum<Q>(dk, ds, this->s_q(), false);
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(dq);
      this->write_ds(ds);
      this->write_dq(dq, steps - 1, 0);
      this->publish(this->ds_full(), this->dq_full(steps - 1));
    }
  }

  // One query tile. kMasked: some scores are hidden.
  template <bool kMasked>
  TW_DEVICE void step(const Work& w, const StepCursor& at) {
    const bool first = at.left == at.steps;
    Scores s, dp;
    this->q_at(steps).wait(shared.q_ring);
    this->template issue_scores<K, Q>(s, shared.k, this->s_q());
    this->do_at(steps).wait(shared.do_ring);
    this->template issue_scores<V, DO>(dp, shared.v, this->s_do());
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(s);

    typename Base::Rules rules{p, w.sequence, this->place_of_thread(w, at)};
    Operands probabilities, ds;
    rules.template make_probabilities<kMasked>(s, this->s_lse());
    rules.pack_probabilities(s, probabilities);
    this->template issue_sum<DO>(dv, probabilities, this->s_do(), first);

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(dp);
    if (at.left == 1) this->taker.keys().release(shared.v_ring);
    rules.pack_score_gradients(probabilities, dp, this->s_delta(), ds);
    hand_on(ds, first);
    ptx::pin_registers(probabilities);
    this->do_at(steps).release(shared.do_ring);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    ptx::pin_registers(ds);
    this->q_at(steps).release(shared.q_ring);
    ++steps;
  }

  // dQ of the last step.
  TW_DEVICE void drain() {
    DqBlock dq;
    this->issue_dq(dq, steps - 1, warpgroup);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dq);
    this->taker.keys().release(shared.k_ring);
    this->write_dq(dq, steps - 1, 0);
    this->publish(this->dq_full(steps - 1));
  }

  TW_DEVICE void gather(const Work& w) {
    this->take_keys(w);
    for (StepCursor at = StepCursor::uniform(w); at.left > 0; at.advance()) {
      this->take_queries(w, at);
      if (this->needs_no_mask(w, at))
        step<false>(w, at);
      else
        step<true>(w, at);
    }
    drain();
    this->store_dk(w, dk);
    this->store_dv(w, dv);
  }

  TW_DEVICE void run() {
    while (const Work* const w = this->taker.take()) {
      const bool has_keys = ptx::warp_uniform(w->steps) > 0;
      if (has_keys)
        gather(*w);
      else
        this->store_zeros(*w);
      this->taker.put_back(has_keys);
    }
  }
};

}  // namespace tilewise::sm90::backward
