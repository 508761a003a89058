// fa2: queries outside, keys inside (FlashAttention-2, Dao 2023, algorithm 1). Threads share
// (sequence, head, query tile) items; a query tile stays in L2 while the keys stream past, and
// O leaves once, normalized. Short query tiles of a group's heads go together, so that each key
// tile is packed for all of them.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_) == defined(HWY_TARGET_TOGGLE)  // per target
#ifdef TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#undef TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#else
#define TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#endif
// clang-format on

#include <algorithm>

#include "cpu/kernels/attend_tiles-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/work.h"
#include "cpu/parallel.h"
#include "cpu/tiles.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

// A query head and where its results go.
struct QueryHead {
  Head head;
  Rows o;
  StatRows lse;
};

// Query heads of one group, whose query tiles lie one after another.
template <class Operands>
struct Fa2Visitor {
  const ForwardJob& job;
  const QueryHead* heads;
  const int64_t count;
  ForwardTiles& tiles;

  QueryTile query(int64_t i) const { return tiles.query.from_row(i * job.pass.tile_q); }
  const StatRows* lse(int64_t i) const { return job.out.lse.given() ? &heads[i].lse : nullptr; }

  void load_q(Span q) {
    for (int64_t i = 0; i < count; ++i) begin_queries<Operands>(heads[i].head, q, query(i));
  }
  void step(Span q, Span k, TileClass c) {
    load_keys<Operands>(heads->head, k, tiles.key);
    for (int64_t i = 0; i < count; ++i)
      if constexpr (requires { typename Operands::Product; })
        attend_in_tiles<Operands>(heads[i].head, {q, k, c}, query(i), tiles);
      else
        attend<Operands>(heads[i].head, {q, k, c}, query(i), tiles.key, tiles.panel[0]);
  }
  void store_o(Span q) {
    for (int64_t i = 0; i < count; ++i)
      finish_queries(heads[i].head.score, q, query(i), heads[i].o, lse(i));
  }
  void finish_slot() {
    for (int64_t i = 0; i < count; ++i) finish_unused(heads[i].head, heads[i].o, lse(i));
  }
};

template <class Operands>
void run_fa2(const ForwardJob& job) {
  const Problem& problem = job.problem;
  std::vector<Sequence> seqs = sequences(problem, job.in);
  std::stable_sort(seqs.begin(), seqs.end(), [](const Sequence& a, const Sequence& b) {
    return a.kv_used > b.kv_used;  // so that no long one begins when all others are done
  });
  const int64_t together = heads_together(problem, job.pass.tile_q, job.pass.threads);
  const WorkList work(seqs, &Sequence::q_slot, job.pass.tile_q, problem.heads_q / together);
  const int64_t thread_bytes = forward_fa2_bytes(problem, job.pass);
  parallel_for(work.size(), job.pass.threads, [&](int64_t i, int thread) {
    [[maybe_unused]] const typename Operands::Session session;
    const WorkItem item = work.longest_first(i);
    const Sequence& seq = seqs[item.sequence];
    Arena arena(static_cast<std::byte*>(job.workspace) + thread * thread_bytes);
    ForwardTiles tiles = carve_forward(arena, problem, job.pass, Operands::kParts, together);
    QueryHead heads[kMostHeads];
    for (int64_t j = 0; j < together; ++j) {
      const int64_t head = item.head * together + j;
      heads[j] = {make_head(problem, job.in, seq, head),
                  head_rows(problem, job.out.o, seq, Side::kQuery, head),
                  stat_rows(problem, job.out.lse, seq, head)};
    }
    Fa2Visitor<Operands> visitor{job, heads, together, tiles};
    const TileGrid grid = {heads->head.score.mask, job.pass.tile_q, job.pass.tile_kv};
    if (item.tile < grid.q_tiles()) walk_fa2(grid, grid.q_span(item.tile), visitor);
    if (item.tile == 0) visitor.finish_slot();
  });
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
