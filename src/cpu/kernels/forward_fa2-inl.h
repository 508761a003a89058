// fa2: queries outside, keys inside (FlashAttention-2, Dao 2023, algorithm 1). Threads share
// (sequence, head, query tile) items; a query tile stays in L2 while the keys stream past, and
// O leaves once, normalized.

// clang-format off
#if defined(TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_) == defined(HWY_TARGET_TOGGLE)  // per target
#ifdef TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#undef TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#else
#define TILEWISE_CPU_KERNELS_FORWARD_FA2_INL_H_
#endif
// clang-format on

#include "cpu/kernels/attend_tiles-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/work.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

template <class Operands>
struct Fa2Visitor {
  const Head& head;
  const Rows& o;
  const StatRows* lse;
  ForwardTiles& tiles;

  void load_q(Span q) { begin_queries<Operands>(head, q, tiles.query); }
  void step(Span q, Span k, TileClass c) {
    load_keys<Operands>(head, k, tiles.key);
    if constexpr (requires { typename Operands::Product; })
      attend_in_tiles<Operands>(head, {q, k, c}, tiles);
    else
      attend<Operands>(head, {q, k, c}, tiles.query, tiles.key, tiles.panel[0]);
  }
  void store_o(Span q) { finish_queries(head.score, q, tiles.query, o, lse); }
};

template <class Operands>
void run_fa2(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const WorkList work(seqs, &Sequence::q_slot, job.pass.tile_q, problem.heads_q);
  const int64_t thread_bytes = forward_fa2_bytes(problem, job.pass);
  parallel_for(work.size(), job.pass.threads, [&](int64_t i, int thread) {
    [[maybe_unused]] const typename Operands::Session session;
    const WorkItem item = work.longest_first(i);
    const Sequence& seq = seqs[item.sequence];
    Arena arena(static_cast<std::byte*>(job.workspace) + thread * thread_bytes);
    ForwardTiles tiles = carve_forward(arena, problem, job.pass, Operands::kParts);
    const Head head = make_head(problem, job.in, seq, item.head);
    const Rows o = head_rows(problem, job.out.o, seq, Side::kQuery, item.head);
    const StatRows lse = stat_rows(problem, job.out.lse, seq, item.head);
    Fa2Visitor<Operands> visitor{head, o, job.out.lse.given() ? &lse : nullptr, tiles};
    const TileGrid grid = {head.score.mask, job.pass.tile_q, job.pass.tile_kv};
    if (item.tile < grid.q_tiles()) walk_fa2(grid, grid.q_span(item.tile), visitor);
    if (item.tile == 0) finish_unused(head, o, visitor.lse);
  });
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
