// The forward's step on AMX tiles. The tile unit and the vector units work side by side within one
// thread, if they are given independent work in turns: under the softmax of a panel run the P V of
// the panel before it and the Q K^T of the one after it, a few tile products after each row.
//
//   tiles    | S0 |  S1         |  P0 V    S2  |  P1 V    S3  | ...
//   vectors  |    |  softmax 0  |  softmax 1   |  softmax 2   | ...
//
// So two panels of scores and two of weights are in flight; bf16 weights lie in the place of their
// scores, which S of the next panel but one takes over when P V is done. Numbers do not depend on
// the turns.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_ATTEND_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)  // per target
#ifdef TILEWISE_CPU_KERNELS_ATTEND_TILES_INL_H_
#undef TILEWISE_CPU_KERNELS_ATTEND_TILES_INL_H_
#else
#define TILEWISE_CPU_KERNELS_ATTEND_TILES_INL_H_
#endif
// clang-format on

#include "cpu/kernels/attend-inl.h"
#include "cpu/simd/softmax_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

#if TILEWISE_BF16_DOT

// A panel on its way: what it sees of the key tile, and which scratch holds its scores and weights.
struct PanelInFlight {
  Panel at;
  QueryTile query;
  KeyTile key;
  PanelScratch scratch;
  bool any() const { return !at.q.empty(); }
};

template <class Operands>
class TileAttention {
  using Product = typename Operands::Product;

 public:
  TileAttention(const Head& head, const Panel& at, const QueryTile& query, const KeyTile& key,
                const PanelScratch (&scratch)[2])
      : head_(head), at_(at), query_(query), key_(key), scratch_(scratch), row_(at.q.begin) {}

  void run() {
    PanelInFlight before, now = next();
    if (now.any()) scores(now).finish();
    while (now.any()) {
      const PanelInFlight after = next();
      Product beside[2] = {before.any() ? values(before) : Product(),
                           after.any() ? scores(after) : Product()};
      softmax(now, beside);
      before = now, now = after;
    }
    if (before.any()) values(before).finish();
  }

 private:
  PanelInFlight next() {
    for (; row_ < at_.q.end; row_ += kPanel) {
      const Span q = {row_, min_of(row_ + kPanel, at_.q.end)};
      const TileClass c =
          at_.tile == TileClass::kFull ? at_.tile : head_.score.mask.classify(q, at_.k);
      if (c == TileClass::kEmpty) continue;
      PanelInFlight x = {
          {q, at_.k, c}, query_.from_row(q.begin - at_.q.begin), key_, scratch_[count_++ % 2]};
      if (c == TileClass::kPartial) see_part<Operands>(head_.score.mask, x.at, x.key);
      row_ += kPanel;
      return x;
    }
    return {};
  }

  Product scores(const PanelInFlight& x) const {
    return {left(x.query.q),
            right(x.key.kt),
            x.scratch.s,
            {x.at.q.size(), padded(x.at.k.size()), head_.q.cols},
            Store::kSet};
  }
  Product values(const PanelInFlight& x) const {
    return {left(x.scratch.p),
            right(x.key.v),
            x.query.o,
            {x.at.q.size(), padded(head_.v.cols), x.at.k.size()},
            Store::kAdd};
  }

  // The softmax of a panel, with the products `beside` in shares of a row each.
  void softmax(PanelInFlight& x, Product (&beside)[2]) const {
    const bool gathers = may_hide(head_.score, x.at.tile) && !x.key.v_finite;
    const bool whole = !gathers && head_.score.dropout.threshold == 0;
    const int64_t rows = x.at.q.size(), steps = beside[0].steps() + beside[1].steps();
    if (head_.score.dropout.threshold) dropout_tile(head_.score, x.at.q, x.at.k, x.scratch.z);
    int64_t done = 0;
    for (int64_t r = 0; r < rows; ++r) {
      hn::Store(row(x, r, whole, gathers), F32Tag(), x.scratch.lane_sums + r * kPad);
      for (; done * rows < steps * (r + 1); ++done) beside[beside[0].done() ? 1 : 0].step();
    }
    add_lane_sums(x.scratch.lane_sums, rows, x.query.state);
    if (!gathers) return;
    gather_values(head_.score, x.at, x.scratch.s, head_.v, x.query.o);
    x = {};  // has no product with V to come
  }

  // Returns what the row's sum grows by, lane by lane.
  HWY_INLINE F32Vec row(const PanelInFlight& x, int64_t r, bool whole, bool gathers) const {
    constexpr int kParts = Operands::kParts;
    const int64_t cols = x.at.k.size();
    float* const s = x.scratch.s.row(r);
    const Matrix p = x.scratch.p.from_row(r);
    const SoftmaxRow state = {x.query.state[r], x.query.o.from_row(r), head_.v.cols};
    score_row(head_.score, x.at.q.begin + r, x.at.k, x.at.tile, s, nullptr);
    if (whole) return softmax_lanes_to<kParts>(head_.score, cols, s, state, p.data, p.part);
    const F32Vec sums = softmax_lanes(head_.score, cols, s, state);
    if (head_.score.dropout.threshold) multiply_row(x.scratch.z.row(r), cols, s);
    if (!gathers) convert_weights<kParts>(s, cols, p.data, p.part);
    return sums;
  }

  const Head& head_;
  const Panel at_;
  const QueryTile query_;
  const KeyTile key_;
  const PanelScratch (&scratch_)[2];
  int64_t row_;  // of the next panel
  int count_ = 0;
};

template <class Operands>
HWY_INLINE void attend_in_tiles(const Head& head, const Panel& at, const QueryTile& query,
                                const ForwardTiles& tiles) {
  TileAttention<Operands>(head, at, query, tiles.key, tiles.panel).run();
}

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
