// What the tiled and the standard backward share: the three products that follow dS, and the ends.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_BACKWARD_MAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)  // per target
#ifdef TILEWISE_CPU_KERNELS_BACKWARD_MAIN_INL_H_
#undef TILEWISE_CPU_KERNELS_BACKWARD_MAIN_INL_H_
#else
#define TILEWISE_CPU_KERNELS_BACKWARD_MAIN_INL_H_
#endif
// clang-format on

#include <thread>
#include <vector>

#include "cpu/kernels/backward_work.h"
#include "cpu/kernels/score_grad-inl.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline void zero_tensor(const Tensor& t) {
  for (int64_t a = 0; a < t.shape[0]; ++a)
    for (int64_t b = 0; b < t.shape[1]; ++b)
      for (int64_t c = 0; c < t.shape[2]; ++c) {
        float* row =
            static_cast<float*>(t.data) + a * t.strides[0] + b * t.strides[1] + c * t.strides[2];
        std::memset(row, 0, t.shape[3] * sizeof(float));
      }
}

// With no query heads nothing reaches K, V and the bias.
inline void backward_without_queries(const BackwardJob& job) {
  for (const Sequence& s : sequences(job.problem, job.in))
    for (int64_t h = 0; h < job.problem.heads_kv; ++h)
      for (const Tensor* t : {&job.grads.dk, &job.grads.dv})
        zero_output_rows(head_rows(job.problem, *t, s, Side::kKey, h), {0, s.kv_slot});
  if (job.grads.dbias.given()) zero_tensor(job.grads.dbias);
}

// Calls add(r, keys) for each row with each run of keys it sees, counted from at.k.begin.
template <class Add>
HWY_INLINE void for_rows_seen(const Score& score, const Panel& at, Add&& add) {
  for (int64_t r = 0; r < at.q.size(); ++r)
    for_seen_runs(score, at.q.begin + r, at.k, [&](Span seen) {
      add(r, Span{seen.begin - at.k.begin, seen.end - at.k.begin});
    });
}

// dV += drop(P)^T dO and dK += dS^T Q. Rows whose dO or Q is not finite go alone, over just the
// keys they see: 0 * NaN would reach the others.
template <class Operands = F32Operands>
HWY_INLINE void add_kv_grads(const Head& head, const Rows& d_o, const Panel& at,
                             const BackwardTiles& t) {
  const int64_t rows = at.q.size(), cols = at.k.size();
  if (may_hide(head.score, at.tile) && !(rows_finite(head.q, at.q) && rows_finite(d_o, at.q))) {
    for_rows_seen(head.score, at, [&](int64_t r, Span seen) {
      const Span row = {at.q.begin + r, at.q.begin + r + 1};
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        add_rows(t.p.row(r) + j, d_o, row, t.dv.row(j));
        add_rows(t.ds.row(r) + j, head.q, row, t.dk.row(j));
      }
    });
    return;
  }
  Operands::multiply(Operands::transposed(t.p, {rows, cols, 0}, t.transposed), right(t.do_values),
                     t.dv, {cols, padded(head.v.cols), rows}, Store::kAdd);
  Operands::multiply(Operands::transposed(t.ds, {rows, cols, 0}, t.transposed), right(t.q_values),
                     t.dk, {cols, padded(head.q.cols), rows}, Store::kAdd);
}

// dQ += dS K, likewise. dS becomes an operand on the way.
template <class Operands = F32Operands>
HWY_INLINE void add_dq(const Head& head, const Panel& at, const BackwardTiles& t, Matrix dq) {
  if (may_hide(head.score, at.tile) && !rows_finite(head.k, at.k)) {
    gather_values(head.score, at, t.ds, head.k, dq);
    return;
  }
  for (int64_t r = 0; r < at.q.size(); ++r) Operands::weights(t.ds.row(r), at.k.size());
  Operands::multiply(left(t.ds), right(t.k), dq, {at.q.size(), padded(head.q.cols), at.k.size()},
                     Store::kAdd);
}

// dK and dV of rows `slot` of the kv head; those past seqused gathered nothing and are 0.
inline void store_dkv(const BackwardJob& job, const Head& head, Span slot, Matrix dk, Matrix dv) {
  const int64_t kv_head = head.head / (job.problem.heads_q / job.problem.heads_kv);
  const Rows dk_out = head_rows(job.problem, job.grads.dk, head.seq, Side::kKey, kv_head);
  const Rows dv_out = head_rows(job.problem, job.grads.dv, head.seq, Side::kKey, kv_head);
  for (int64_t j = slot.begin; j < slot.end; ++j) {
    unpack(dk.row(j - slot.begin), head.score.scale, dk_out, j);
    unpack(dv.row(j - slot.begin), 1.0f, dv_out, j);
  }
}

// Spins briefly, then lets others run: the thread whose turn it is may be waiting for this core.
inline void wait_for_turn(const std::atomic<int32_t>& turn, int64_t mine) {
  for (int spins = 0; turn.load(std::memory_order_acquire) != mine; ++spins)
    if (spins > 200) std::this_thread::yield();
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
