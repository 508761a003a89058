// The consumers of the Hopper backward for head dims up to 128 and scores that nothing is done to:
// each gathers dK and dV of 64 keys.
//
// dS passes through shared memory only for dQ, which wants the keys of both consumers. That product
// lags a step behind, so neither consumer waits for the other. S of the next step is issued before
// dK of this one is awaited, so the tensor cores have work whenever a consumer has arithmetic: dP
// under P, dV under dS, dK and the next S under what becomes of dS and dQ. Each step but an item's
// last is the same code without a branch round a product: ptxas gives up ("serialized") otherwise.
//
// Registers of a thread: dK D/2, dV Dv/2, S and dP tile_q/2 each, P and dS tile_q/4 each (never
// both), dQ 32 (when dP is gone); D = 128: 128 + 64 + 16 of 232.
#pragma once

#include "cuda/device/sm90/backward_consumer.h"
#include "cuda/device/tile/turn.h"

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

  // Up to head dim 64 exponentials take nearly as long as products; at the same time in both
  // consumers, they would leave the tensor cores idle. Above, turns only cost.
  static constexpr bool kTurns = C.head_dim <= 64;
  TW_DEVICE tile::Turn<kTurns ? 2 : 1> turn() const { return {warpgroup}; }

  // What the products of a step leave behind, `dk` still under way: dS, and dQ of the step before.
  TW_DEVICE void hand_on(Operands& ds, bool first) {
    if (first) {
      this->template issue_sum<Q>(dk, ds, this->s_q(), true);
      this->write_ds(ds);
      this->publish(this->ds_full());
    } else {
      DqBlock dq;
      this->issue_dq(dq, steps - 1, warpgroup);
      this->template issue_sum<Q>(dk, ds, this->s_q(), false);
      this->write_ds(ds);
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(dq);
      this->write_dq(dq, steps - 1, 0);
      this->publish(this->ds_full(), this->dq_full(steps - 1));
    }
  }

  // Raw scores become exponents. Without turns before dP is issued, since they have to move to
  // other registers there anyway; with turns dP had better be under way early.
  TW_DEVICE void make_exponents(const Work& w, Scores& s) const {
    typename Base::Rules{p, w.sequence, {}}.make_exponents(s, this->s_lse(steps));
  }

  // One query tile, whose scores are there; leaves the raw ones of the next. kMasked: some scores
  // are hidden.
  template <bool kMasked, bool kLast>
  TW_DEVICE void step_masked(Scores& s, const Work& w, const StepCursor& at) {
    const bool first = at.left == at.steps;
    Scores dp, next;
    this->do_at(steps).wait(shared.do_ring);
    this->template issue_scores<V, DO>(dp, shared.v, this->s_do());

    typename Base::Rules rules{p, w.sequence, this->place_of_thread(w, at)};
    Operands probabilities, ds;
    turn().wait();
    if constexpr (kTurns) make_exponents(w, s);
    rules.template make_probabilities<kMasked>(s);
    rules.pack_probabilities(s, probabilities);
    ptx::pin_registers(probabilities);
    turn().pass();
    this->template issue_sum<DO>(dv, probabilities, this->s_do(), first);

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(dp);
    if constexpr (kLast) this->taker.keys().release(shared.v_ring);
    rules.pack_score_gradients(probabilities, dp, this->s_delta(), ds);
    hand_on(ds, first);
    ptx::pin_registers(probabilities);
    this->do_at(steps).release(shared.do_ring);
    if constexpr (!kLast) this->begin_scores(next, w, at.next(), steps + 1);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dk);
    ptx::pin_registers(dv);
    ptx::pin_registers(ds);
    if constexpr (!kLast) {
      ptx::pin_registers(next);
#pragma unroll
      for (int i = 0; i < C.tile_q / 2; ++i) s[i] = next[i];
    }
    this->q_at(steps).release(shared.q_ring);
    ++steps;
  }

  template <bool kLast>
  TW_DEVICE void step(Scores& s, const Work& w, const StepCursor& at) {
    if constexpr (!kTurns) make_exponents(w, s);
    if (this->needs_no_mask(w, at))
      step_masked<false, kLast>(s, w, at);
    else
      step_masked<true, kLast>(s, w, at);
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
    StepCursor at = StepCursor::uniform(w);
    Scores s;
    this->begin_scores(s, w, at, steps);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(s);
    for (; at.left > 1; at.advance()) step<false>(s, w, at);
    step<true>(s, w, at);
    drain();
    this->store_dk(w, dk);
    this->store_dv(w, dv);
  }

  TW_DEVICE void run() {
    turn().open();
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
