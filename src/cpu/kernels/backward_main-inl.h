// What the tiled and the standard backward share: the workspace, the pass before the main loop, and
// the three products that follow dS.

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

#include "cpu/kernels/backward_prepare-inl.h"
#include "cpu/kernels/work.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The workspace as the plan laid it out: the shared part, then one part a thread.
struct BackwardMemory {
  explicit BackwardMemory(const BackwardJob& j) : job(j) {
    Arena arena(job.workspace);
    shared = carve_shared(arena, job.problem, job.pass);
    threads = static_cast<std::byte*>(job.workspace) + arena.bytes();
    thread_bytes = backward_thread_bytes(job.problem, job.pass);
  }
  BackwardTiles tiles(int thread) const {
    Arena arena(threads + thread * thread_bytes);
    return carve_backward(arena, job.problem, job.pass);
  }
  PrepareTiles prepare_tiles(int thread) const {
    Arena arena(threads + thread * thread_bytes);
    return carve_prepare(arena, job.problem, job.pass);
  }

  // The baseline's matrices lie behind all threads' tiles.
  StandardMatrices standard_matrices(int thread) const {
    Arena arena(threads + job.pass.threads * thread_bytes +
                thread * standard_matrix_bytes(job.problem));
    return carve_standard(arena, job.problem);
  }

  const BackwardJob& job;
  SharedBackward shared;
  std::byte* threads;
  int64_t thread_bytes;
};

inline void zero_output_rows(const Rows& rows, Span span) {
  for (int64_t i = span.begin; i < span.end; ++i)
    std::memset(rows.row(i), 0, rows.cols * size_of(rows.dtype));
}

inline void zero_tensor(const Tensor& t) {
  for (int64_t a = 0; a < t.shape[0]; ++a)
    for (int64_t b = 0; b < t.shape[1]; ++b)
      for (int64_t c = 0; c < t.shape[2]; ++c) {
        float* row =
            static_cast<float*>(t.data) + a * t.strides[0] + b * t.strides[1] + c * t.strides[2];
        std::memset(row, 0, t.shape[3] * sizeof(float));
      }
}

// The work of both passes: query tiles of all query heads, key tiles of all kv heads.
struct BackwardWork {
  explicit BackwardWork(const BackwardJob& job)
      : seqs(sequences(job.problem, job.in)),
        queries(seqs, &Sequence::q_slot, job.pass.tile_q, job.problem.heads_q),
        keys(seqs, &Sequence::kv_slot, job.pass.tile_kv, job.problem.heads_kv) {}
  std::vector<Sequence> seqs;
  WorkList queries, keys;
};

// The norms that tell which rows deserve a replay.
inline void measure_keys(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory) {
  const Problem& problem = job.problem;
  const int64_t group = problem.heads_q / problem.heads_kv;
  parallel_for(work.keys.size(), job.pass.threads, [&](int64_t i, int thread) {
    const WorkItem item = work.keys[i];
    const Sequence& seq = work.seqs[item.sequence];
    const Head head = make_head(problem, job.in, seq, item.head * group);
    const Matrix rows = memory.prepare_tiles(thread).rows;
    const int64_t k0 = item.tile * job.pass.tile_kv;
    const Span k = {k0, min_of(k0 + job.pass.tile_kv, seq.kv_used)};
    pack_rows(head.k, k, rows);
    memory.shared.k_norm[work.keys.place(item)] = max_norm(rows, k.size(), head.k.cols);
  });
}

inline float longest_key(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory, const WorkItem& item, Span keys) {
  const int64_t kv_head = item.head / (job.problem.heads_q / job.problem.heads_kv);
  float most = 0;
  for (int64_t j = keys.begin / job.pass.tile_kv; j * job.pass.tile_kv < keys.end; ++j) {
    const WorkItem tile = {item.sequence, j, kv_head};
    most = max_of(most, memory.shared.k_norm[work.keys.place(tile)]);
  }
  return most;
}

// One query tile of one head: statistics, delta, its part of dsink; dQ's sum begun; dQ written
// where nothing will be added to it.
inline void prepare_tile(const BackwardJob& job, const BackwardWork& work,
                         const BackwardMemory& memory, const WorkItem& item, int thread) {
  const Problem& problem = job.problem;
  const Sequence& seq = work.seqs[item.sequence];
  const Head head = make_head(problem, job.in, seq, item.head);
  const int64_t q0 = item.tile * job.pass.tile_q, q1 = q0 + job.pass.tile_q;
  const Span slot = {q0, min_of(q1, seq.q_slot)}, used = {q0, min_of(q1, seq.q_used)};
  const int64_t row = stat_index(problem, seq, item.head) + q0, place = work.queries.place(item);
  const Span keys = head.score.mask.keys_of(used);

  memory.shared.turn[place].store(0, std::memory_order_relaxed);
  zero_rows(memory.shared.dq.from_row(row), slot.size(), problem.head_dim);
  zero_output_rows(head_rows(problem, job.grads.dq, seq, Side::kQuery, item.head),
                   {keys.empty() ? q0 : max_of(used.end, q0), slot.end});
  double dsink = 0;
  if (!used.empty()) {
    const StatRows d_lse = stat_rows(problem, job.grads.d_lse, seq, item.head);
    const PrepareHead in = {head_rows(problem, job.grads.o, seq, Side::kQuery, item.head),
                            head_rows(problem, job.grads.d_o, seq, Side::kQuery, item.head),
                            stat_rows(problem, job.grads.lse, seq, item.head),
                            job.grads.d_lse.given() ? &d_lse : nullptr,
                            longest_key(job, work, memory, item, keys),
                            job.other_order};
    PrepareTiles tiles = memory.prepare_tiles(thread);
    dsink = prepare_rows(head, in, used, job.pass.tile_kv, tiles, memory.shared.stats + row);
  }
  if (problem.sink) memory.shared.dsink[place] = dsink;
}

// The tiles' parts, always in the same order.
inline void store_dsink(const BackwardJob& job, const BackwardWork& work,
                        const BackwardMemory& memory) {
  const int64_t heads = job.problem.heads_q;
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t place = h; place < work.queries.size(); place += heads)
      sum += memory.shared.dsink[place];
    static_cast<float*>(job.grads.dsink.data)[h * job.grads.dsink.strides[0]] =
        static_cast<float>(sum);
  }
}

inline void prepare(const BackwardJob& job, const BackwardWork& work,
                    const BackwardMemory& memory) {
  measure_keys(job, work, memory);
  parallel_for(work.queries.size(), job.pass.threads, [&](int64_t i, int thread) {
    prepare_tile(job, work, memory, work.queries[i], thread);
  });
  if (job.grads.dsink.given()) store_dsink(job, work, memory);
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
