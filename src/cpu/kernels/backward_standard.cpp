// The baseline's backward: P and dS of a head are written whole (2 Sq x Sk floats of workspace for
// each thread), then read back for dV, dK and dQ. Threads share (sequence, kv head) items.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_standard.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/backward_main-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

inline BackwardTiles at_tile(BackwardTiles t, const StandardMatrices& whole, Span q, Span k) {
  t.p = whole.p.from_row(q.begin).from_col(k.begin);
  t.ds = whole.ds.from_row(q.begin).from_col(k.begin);
  t.dk = whole.dk.from_row(k.begin);
  t.dv = whole.dv.from_row(k.begin);
  return t;
}

template <class Visit>
void for_all_tiles(const TileGrid& grid, Visit&& visit) {
  for (int64_t j = 0; j < grid.kv_tiles(); ++j)
    for (int64_t i = 0; i < grid.q_tiles(); ++i) visit(grid.q_span(i), grid.kv_span(j));
}

// One query head: fills P and dS, then the products.
inline void standard_head(const BackwardJob& job, const Head& head, const BackwardMemory& memory,
                          const BackwardTiles& tiles, const StandardMatrices& whole) {
  const Problem& problem = job.problem;
  const TileGrid grid = {head.score.mask, job.pass.tile_q, job.pass.tile_kv};
  const Rows d_o = head_rows(problem, job.grads.d_o, head.seq, Side::kQuery, head.head);
  const int64_t row0 = stat_index(problem, head.seq, head.head);
  for_all_tiles(grid, [&](Span q, Span k) {
    BackwardTiles t = at_tile(tiles, whole, q, k);
    t.dv = tiles.dv;  // V's rows pass through the tile's own
    load_keys_for_grad(head, k, t);
    load_queries_for_grad(head, d_o, q, t);
    score_grad(head, {q, k, TileClass::kPartial}, memory.shared.stats + row0 + q.begin, t);
    if (head.score.softcap != 0)
      for (int64_t r = 0; r < q.size(); ++r)
        multiply_row(t.cap_slope.row(r), k.size(), t.ds.row(r));
  });
  for_all_tiles(grid, [&](Span q, Span k) {
    BackwardTiles t = at_tile(tiles, whole, q, k);
    load_queries_for_grad(head, d_o, q, t);
    add_kv_grads(head, d_o, {q, k, TileClass::kPartial}, t);
  });
  for_all_tiles(grid, [&](Span q, Span k) {
    const BackwardTiles t = at_tile(tiles, whole, q, k);
    pack_rows(head.k, k, t.k);
    add_dq(head, {q, k, TileClass::kPartial}, t, memory.shared.dq.from_row(row0 + q.begin));
  });
  const Rows dq = head_rows(problem, job.grads.dq, head.seq, Side::kQuery, head.head);
  for (int64_t i = 0; i < head.seq.q_used; ++i)
    unpack(memory.shared.dq.row(row0 + i), head.score.scale, dq, i);
}

}  // namespace HWY_NAMESPACE

template <>
void backward_standard<HWY_TARGET>(const BackwardJob& job) {
  const Problem& problem = job.problem;
  if (problem.heads_q == 0) return HWY_NAMESPACE::backward_without_queries(job);
  backward_prepare<HWY_TARGET>(job);
  const BackwardMemory memory(job);
  const BackwardWork work(job);

  const int64_t group = problem.heads_q / problem.heads_kv;
  parallel_for(problem.batch * problem.heads_kv, job.pass.threads, [&](int64_t i, int thread) {
    const Sequence& seq = work.seqs[i / problem.heads_kv];
    const BackwardTiles tiles = memory.tiles(thread);
    const StandardMatrices whole = memory.standard_matrices(thread);
    HWY_NAMESPACE::zero_rows(whole.dk, seq.kv_slot, problem.head_dim);
    HWY_NAMESPACE::zero_rows(whole.dv, seq.kv_slot, problem.head_dim_v);
    Head head;
    for (int64_t g = 0; g < group; ++g) {
      head = make_head(problem, job.in, seq, i % problem.heads_kv * group + g);
      HWY_NAMESPACE::standard_head(job, head, memory, tiles, whole);
    }
    HWY_NAMESPACE::store_dkv(job, head, {0, seq.kv_slot}, whole.dk, whole.dv);
  });
  if (job.grads.dbias.given()) backward_bias<HWY_TARGET>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
