// The forward's step, shared by every loop order: one query tile meets one key tile.
//
//   S = Q K^T                            gemm, depth D
//   P, m, l, O  <-  softmax_step(S)      row by row
//   O += drop(P) V                       gemm, depth = keys
//
// A query tile is worked on in panels of kPanel rows, so that the scores in flight (kPanel x
// tile_kv) stay in L1; the columns of a panel are cut to the keys that it sees, so a diagonal tile
// costs about what is visible of it.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_KERNELS_ATTEND_INL_H_
#undef TILEWISE_CPU_KERNELS_ATTEND_INL_H_
#else
#define TILEWISE_CPU_KERNELS_ATTEND_INL_H_
#endif
// clang-format on

#include "core/schedule.h"
#include "cpu/kernels/scratch.h"
#include "cpu/simd/operands-inl.h"
#include "cpu/simd/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// K goes through `rows` on its way to K^T.
HWY_INLINE void load_k_transposed(const Head& head, Span k, Matrix rows, Matrix kt) {
  F32Operands::columns(head.k, k, rows, kt);
}

template <class Operands = F32Operands>
HWY_INLINE void load_keys(const Head& head, Span k, KeyTile& tile) {
  Operands::columns(head.k, k, tile.v, tile.kt);
  tile.v_finite = Operands::values(head.v, k, tile.v);
}

// (-inf, 0), or the sink's own logit and weight.
HWY_INLINE SoftmaxState nothing_seen(const Head& head) {
  return {head.score.sink, head.score.sink == kMinusInf ? 0.0f : 1.0f};
}

HWY_INLINE void begin_running(const Head& head, int64_t rows, const QueryTile& tile) {
  zero_rows(tile.o, rows, head.v.cols);
  std::fill(tile.state, tile.state + rows, nothing_seen(head));
}

template <class Operands = F32Operands>
HWY_INLINE void begin_queries(const Head& head, Span q, const QueryTile& tile) {
  Operands::rows(head.q, q, tile.q);
  begin_running(head, q.size(), tile);
}

// Does a tile hold keys that some of its rows don't see? A bias of -inf hides like the mask.
HWY_INLINE bool may_hide(const Score& score, TileClass tile) {
  return tile == TileClass::kPartial || score.bias.base;
}

// Calls visit(run) for each run of keys of `k` that query q sees.
template <class Visit>
HWY_INLINE void for_seen_runs(const Score& score, int64_t q, Span k, Visit&& visit) {
  const Span row = score.mask.row(q);
  const Span seen = {max_of(row.begin, k.begin), min_of(row.end, k.end)};
  if (!score.bias.base) {
    if (!seen.empty()) visit(seen);
    return;
  }
  int64_t begin = seen.begin;
  for (int64_t j = seen.begin; j <= seen.end; ++j) {
    if (j < seen.end && bias_at(score.bias, q, j) != kMinusInf) continue;
    if (begin < j) visit(Span{begin, j});
    begin = j + 1;
  }
}

HWY_INLINE bool rows_finite(const Rows& rows, Span span) {
  HWY_ALIGN float row[kMaxHeadDim];
  bool finite = true;
  for (int64_t i = span.begin; i < span.end; ++i) {
    pack_rows(rows, {i, i + 1}, {row, kMaxHeadDim});
    finite &= all_finite({row, kMaxHeadDim}, 1, rows.cols);
  }
  return finite;
}

// out(r) += weight * in(row) for each of the rows, whose weights follow each other.
HWY_INLINE void add_rows(const float* weights, const Rows& in, Span span, float* out) {
  const F32Tag d;
  HWY_ALIGN float row[kMaxHeadDim];
  for (int64_t i = span.begin; i < span.end; ++i) {
    pack_rows(in, {i, i + 1}, {row, kMaxHeadDim});
    const F32Vec weight = hn::Set(d, weights[i - span.begin]);
    for (int64_t c = 0; c < padded(in.cols); c += hn::Lanes(d))
      hn::Store(hn::MulAdd(weight, hn::Load(d, row + c), hn::Load(d, out + c)), d, out + c);
  }
}

// A weight of 0 times inf or NaN is NaN, which would leak a value into rows that don't see it. So
// where V holds such numbers, the rows of a tile that hides keys run one by one over what they see.
// The weights are still f32, and the values are read where the caller has them: o(r) += sum of p(r,
// k) values(k).
HWY_INLINE void gather_values(const Score& score, const Panel& at, Matrix p, const Rows& values,
                              Matrix o) {
  for (int64_t r = 0; r < at.q.size(); ++r)
    for_seen_runs(score, at.q.begin + r, at.k, [&](Span seen) {
      add_rows(p.row(r) + (seen.begin - at.k.begin), values, seen, o.row(r));
    });
}

// The columns of key tile `k` that a query of `q` sees, from a multiple of kPad.
HWY_INLINE Span visible_part(const BandMask& mask, Span q, Span k) {
  const Span seen = mask.keys_of(q);
  const int64_t begin = max_of(seen.begin, k.begin);
  return {k.begin + (begin - k.begin) / kPad * kPad, min_of(seen.end, k.end)};
}

// Narrows a step to the keys that its queries see.
template <class Operands>
HWY_INLINE void see_part(const BandMask& mask, Panel& at, KeyTile& key) {
  const Span part = visible_part(mask, at.q, at.k);
  key.kt = key.kt.from_col(part.begin - at.k.begin);
  key.v = Operands::values_from(key.v, part.begin - at.k.begin);
  at.k = part;
}

template <class Operands>
HWY_INLINE void attend_panel(const Head& head, Panel at, const QueryTile& query, KeyTile key,
                             const PanelScratch& scratch) {
  const int64_t d = head.q.cols, dv = head.v.cols, rows = at.q.size();
  if (at.tile == TileClass::kPartial) see_part<Operands>(head.score.mask, at, key);
  const int64_t cols = at.k.size();
  const bool drops = head.score.dropout.threshold != 0;
  const bool gathers = may_hide(head.score, at.tile) && !key.v_finite;
  const F32Tag d_lanes;
  const int64_t lanes = hn::Lanes(d_lanes);
  Operands::multiply(left(query.q), right(key.kt), scratch.s, {rows, padded(cols), d}, Store::kSet);
  for (int64_t r = 0; r < rows; ++r) {
    float* s = scratch.s.row(r);
    const SoftmaxRow row = {query.state[r], query.o.from_row(r), dv};
    score_row(head.score, at.q.begin + r, at.k, at.tile, s, nullptr);
    hn::Store(drops || gathers ? softmax_lanes(head.score, cols, s, row)
                               : Operands::softmax(head.score, cols, s, row),
              d_lanes, scratch.lane_sums + r * lanes);
  }
  add_lane_sums(scratch.lane_sums, rows, query.state);
  if (drops) {
    dropout_tile(head.score, at.q, at.k, scratch.z);
    for (int64_t r = 0; r < rows; ++r) multiply_row(scratch.z.row(r), cols, scratch.s.row(r));
  }
  if (gathers) {
    gather_values(head.score, at, scratch.s, head.v, query.o);
    return;
  }
  if (drops)
    for (int64_t r = 0; r < rows; ++r) Operands::weights(scratch.s.row(r), cols);
  Operands::multiply(left(scratch.s), right(key.v), query.o, {rows, padded(dv), cols}, Store::kAdd);
}

// One step of a loop order.
template <class Operands = F32Operands>
HWY_INLINE void attend(const Head& head, const Panel& at, const QueryTile& query,
                       const KeyTile& key, const PanelScratch& scratch) {
  for (int64_t q0 = at.q.begin; q0 < at.q.end; q0 += kPanel) {
    const Span q = {q0, min_of(q0 + kPanel, at.q.end)};
    const TileClass c = at.tile == TileClass::kFull ? at.tile : head.score.mask.classify(q, at.k);
    if (c != TileClass::kEmpty)
      attend_panel<Operands>(head, {q, at.k, c}, query.from_row(q0 - at.q.begin), key, scratch);
  }
}

HWY_INLINE float log_sum_exp(const Score& score, SoftmaxState s) {
  if (s.max == kMinusInf && s.sum == 0) return kMinusInf;
  return static_cast<float>(static_cast<double>(s.max) * score.natural +
                            std::log(static_cast<double>(s.sum)));
}

// What a row past seqused gets: nothing seen.
HWY_INLINE void finish_unused_row(const Rows& o, int64_t i, const StatRows* lse) {
  std::memset(o.row(i), 0, o.cols * size_of(o.dtype));
  if (lse) lse->at(i) = kMinusInf;
}
HWY_INLINE void finish_unused(const Head& head, const Rows& o, const StatRows* lse) {
  for (int64_t i = head.seq.q_used; i < head.seq.q_slot; ++i) finish_unused_row(o, i, lse);
}

// O = O / l and LSE = m + log l, in the caller's tensors; rows that saw nothing give 0 and -inf.
HWY_INLINE void finish_queries(const Score& score, Span q, const QueryTile& tile, const Rows& o,
                               const StatRows* lse) {
  for (int64_t i = q.begin; i < q.end; ++i) {
    const SoftmaxState state = tile.state[i - q.begin];
    unpack(tile.o.row(i - q.begin), state.sum == 0 ? 0.0f : 1.0f / state.sum, o, i);
    if (lse) lse->at(i) = log_sum_exp(score, state);
  }
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
