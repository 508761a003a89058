// The backward: keys outside, queries inside (FlashAttention, Dao et al. 2022, algorithm 4).
//
//   dV = drop(P)^T dO,  dK = dS^T Q   stay with the key tile, whose thread owns them
//   dQ += dS K                        comes from every key tile
//
// Threads share (sequence, key tile, kv head) items. The additions to a query tile's dQ take turns
// in the order of the key tiles, so the result is bitwise the same for any number of threads, and a
// head alone still spreads over all of them: thread n + 1 follows thread n through the queries, one
// tile behind. Items start in ascending order, so the turn that a thread waits for always belongs
// to a thread that is running. A query tile's dQ leaves with its last key tile. P, dS: never in
// memory.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_BACKWARD_TILED_INL_H_) == defined(HWY_TARGET_TOGGLE)  // per target
#ifdef TILEWISE_CPU_KERNELS_BACKWARD_TILED_INL_H_
#undef TILEWISE_CPU_KERNELS_BACKWARD_TILED_INL_H_
#else
#define TILEWISE_CPU_KERNELS_BACKWARD_TILED_INL_H_
#endif
// clang-format on

#include "cpu/kernels/backward_main-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/work.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

template <class Operands>
struct BackwardVisitor {
  const BackwardJob& job;
  const Sequence& seq;
  int64_t kv_head;
  const SharedBackward& shared;
  const WorkList& queries;
  int64_t sequence;
  BackwardTiles& t;

  void load_kv(Span k) {
    load_keys_for_grad<Operands>(query_head(0), k, t);
    zero_rows(t.dk, job.pass.tile_kv, job.problem.head_dim);
    zero_rows(t.dv, job.pass.tile_kv, job.problem.head_dim_v);
  }

  void step(Span q, Span k, TileClass c) {
    for (int64_t g = 0; g < group(); ++g) {
      const Head head = query_head(g);
      const Rows d_o = head_rows(job.problem, job.grads.d_o, head.seq, Side::kQuery, head.head);
      load_queries_for_grad<Operands>(head, d_o, q, t);
      Panel at = {q, k, c};
      if (c == TileClass::kPartial) at.k = visible_part(head.score.mask, q, k);
      const BackwardTiles part = from_key<Operands>(t, at.k.begin - k.begin);
      const int64_t row = stat_index(job.problem, head.seq, head.head) + q.begin;
      score_grad<Operands>(head, at, shared.stats + row, part);
      if (head.score.softcap != 0)
        for (int64_t r = 0; r < q.size(); ++r)
          multiply_row(part.cap_slope.row(r), at.k.size(), part.ds.row(r));
      add_kv_grads<Operands>(head, d_o, at, part);

      const int64_t tile = q.begin / job.pass.tile_q;
      auto& turn = shared.turn[queries.place({sequence, tile, head.head})];
      const Span keys = head.score.mask.keys_of(q);
      const int64_t mine = k.begin / job.pass.tile_kv - keys.begin / job.pass.tile_kv;
      wait_for_turn(turn, mine);
      add_dq<Operands>(head, at, part, shared.dq.from_row(row));
      if (k.end >= keys.end) store_dq(head, q, row);
      turn.store(static_cast<int32_t>(mine + 1), std::memory_order_release);
    }
  }

  void store_kv(Span) {}

  // The query heads that read this kv head. They are made where they are used: a list would have to
  // be allocated, and a thread of a parallel region has nowhere to report that it could not.
  int64_t group() const { return job.problem.heads_q / job.problem.heads_kv; }
  Head query_head(int64_t g) const {
    return make_head(job.problem, job.in, seq, kv_head * group() + g);
  }

 private:
  void store_dq(const Head& head, Span q, int64_t row) {
    const Rows dq = head_rows(job.problem, job.grads.dq, head.seq, Side::kQuery, head.head);
    for (int64_t r = 0; r < q.size(); ++r)
      unpack(shared.dq.row(row + r), head.score.scale, dq, q.begin + r);
  }
};

// Everything but dbias.
template <class Operands>
void run_backward_tiled(const BackwardJob& job) {
  const Problem& problem = job.problem;
  if (problem.heads_q == 0) return backward_without_queries(job);
  backward_prepare<HWY_TARGET>(job);
  const BackwardMemory memory(job);
  const BackwardWork work(job);

  parallel_for(work.keys.size(), job.pass.threads, [&](int64_t i, int thread) {
    [[maybe_unused]] const typename Operands::Session session;
    const WorkItem item = work.keys[i];
    const Sequence& seq = work.seqs[item.sequence];
    BackwardTiles tiles = memory.tiles(thread);
    BackwardVisitor<Operands> visitor{job,          seq,           item.head, memory.shared,
                                      work.queries, item.sequence, tiles};
    const Head first = visitor.query_head(0);
    const TileGrid grid = {first.score.mask, job.pass.tile_q, job.pass.tile_kv};
    const int64_t k0 = item.tile * job.pass.tile_kv, k1 = k0 + job.pass.tile_kv;
    walk_fa1(grid, {k0, max_of(k0, min_of(k1, seq.kv_used))}, visitor);
    store_dkv(job, first, {k0, min_of(k1, seq.kv_slot)}, tiles.dk, tiles.dv);
  });
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
