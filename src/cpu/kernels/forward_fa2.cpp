// fa2: queries outside, keys inside (FlashAttention-2, Dao 2023, algorithm 1). Threads share
// (sequence, head, query tile) items; a query tile stays in L2 while the keys stream past, and
// O leaves once, normalized.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_fa2.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/attend-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/kernels/work.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

struct Fa2Visitor {
  const Head& head;
  const Rows& o;
  const StatRows* lse;
  ForwardTiles& tiles;

  void load_q(Span q) { begin_queries(head, q, tiles.query); }
  void step(Span q, Span k, TileClass c) {
    load_keys(head, k, tiles.key);
    attend(head, {q, k, c}, tiles.query, tiles.key, tiles.panel);
  }
  void store_o(Span q) { finish_queries(head.score, q, tiles.query, o, lse); }
};

}  // namespace HWY_NAMESPACE

template <>
void forward_fa2<HWY_TARGET>(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const WorkList work(seqs, &Sequence::q_slot, job.pass.tile_q, problem.heads_q);
  const int64_t thread_bytes = forward_fa2_bytes(problem, job.pass);
  parallel_for(work.size(), job.pass.threads, [&](int64_t i, int thread) {
    const WorkItem item = work.longest_first(i);
    const Sequence& seq = seqs[item.sequence];
    Arena arena(static_cast<std::byte*>(job.workspace) + thread * thread_bytes);
    ForwardTiles tiles = carve_forward(arena, problem, job.pass);
    const Head head = make_head(problem, job.in, seq, item.head);
    const Rows o = head_rows(problem, job.out.o, seq, Side::kQuery, item.head);
    const StatRows lse = stat_rows(problem, job.out.lse, seq, item.head);
    HWY_NAMESPACE::Fa2Visitor visitor{head, o, job.out.lse.given() ? &lse : nullptr, tiles};
    const TileGrid grid = {head.score.mask, job.pass.tile_q, job.pass.tile_kv};
    if (item.tile < grid.q_tiles()) walk_fa2(grid, grid.q_span(item.tile), visitor);
    if (item.tile == 0) HWY_NAMESPACE::finish_unused(head, o, visitor.lse);
  });
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
