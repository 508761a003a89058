// fa1: keys outside, queries inside, the loop order of the first paper (FlashAttention, Dao et al.
// 2022, algorithm 1). The running O and its statistics (m, l) lie in slow memory, here the
// workspace, and every key tile reads and writes them once. Threads share (sequence, head) items.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_fa1.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/attend-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

struct Fa1Visitor {
  const Head& head;
  QueryTile running;  // all rows of the sequence; Q is packed again for each step
  ForwardTiles& tiles;

  void load_kv(Span k) { load_keys(head, k, tiles.key); }
  void step(Span q, Span k, TileClass c) {
    pack_rows(head.q, q, tiles.query.q);
    const QueryTile query = {tiles.query.q, running.o.from_row(q.begin), running.state + q.begin};
    attend(head, {q, k, c}, query, tiles.key, tiles.panel[0]);
  }
  void store_kv(Span) {}
};

}  // namespace HWY_NAMESPACE

template <>
void forward_fa1<HWY_TARGET>(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const int64_t thread_bytes = forward_fa1_bytes(problem, job.pass);
  parallel_for(problem.batch * problem.heads_q, job.pass.threads, [&](int64_t i, int thread) {
    const Sequence& seq = seqs[i / problem.heads_q];
    Arena arena(static_cast<std::byte*>(job.workspace) + thread * thread_bytes);
    ForwardTiles tiles = carve_forward(arena, problem, job.pass, 0);
    const QueryTile running = carve_running(arena, problem);
    const Head head = make_head(problem, job.in, seq, i % problem.heads_q);
    const Rows o = head_rows(problem, job.out.o, seq, Side::kQuery, head.head);
    const StatRows lse = stat_rows(problem, job.out.lse, seq, head.head);
    const StatRows* lse_out = job.out.lse.given() ? &lse : nullptr;

    HWY_NAMESPACE::begin_running(head, seq.q_used, running);
    HWY_NAMESPACE::Fa1Visitor visitor{head, running, tiles};
    const TileGrid grid = {head.score.mask, job.pass.tile_q, job.pass.tile_kv};
    for (int64_t j = 0; j < grid.kv_tiles(); ++j) walk_fa1(grid, grid.kv_span(j), visitor);
    HWY_NAMESPACE::finish_queries(head.score, {0, seq.q_used}, running, o, lse_out);
    HWY_NAMESPACE::finish_unused(head, o, lse_out);
  });
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
