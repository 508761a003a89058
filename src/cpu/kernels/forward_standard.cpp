// standard: the baseline of the papers. All scores of a head are written, then all rows normalized,
// then multiplied with V: Sq x Sk floats of workspace for each thread. Threads share (sequence,
// head) items.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_standard.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/attend-inl.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

struct StandardVisitor {
  const Head& head;
  const Rows& o;
  const StatRows* lse;
  Matrix s;             // Sq x Sk
  SoftmaxState* state;  // Sq
  ForwardTiles& tiles;

  Span keys() const { return {0, head.seq.kv_used}; }

  void begin_scores(Span q) { begin_queries(head, q, {tiles.query.q, tiles.query.o, row(q)}); }
  void scores(Span q, Span k) {
    load_k_transposed(head, k, tiles.key.v, tiles.key.kt);
    gemm(left(tiles.query.q), right(tiles.key.kt), s.from_row(q.begin).from_col(k.begin),
         {q.size(), padded(k.size()), head.q.cols}, Store::kSet);
  }
  void softmax(Span q) {
    for (int64_t i = q.begin; i < q.end; ++i) {
      score_row(head.score, i, keys(), TileClass::kPartial, s.row(i), nullptr);
      softmax_step(head.score, keys().size(), s.row(i), {state[i], {}, 0});
      if (state[i].sum != 0) scale_row(1.0f / state[i].sum, keys().size(), s.row(i));
    }
  }
  void begin_values(Span q) { zero_rows(tiles.query.o, q.size(), head.v.cols); }
  void values(Span q, Span k) {
    pack_rows(head.v, k, tiles.key.v);
    const Matrix p = s.from_row(q.begin).from_col(k.begin);
    if (head.score.dropout.threshold) drop(q, k, p);
    if (all_finite(tiles.key.v, k.size(), head.v.cols))
      gemm(left(p), right(tiles.key.v), tiles.query.o, {q.size(), padded(head.v.cols), k.size()},
           Store::kAdd);
    else
      gather_values(head.score, {q, k, TileClass::kPartial}, p, head.v, tiles.query.o);
  }
  void end_values(Span q) {
    const QueryTile tile = {{}, tiles.query.o, row(q)};
    for (int64_t i = q.begin; i < q.end; ++i) {
      if (lse) lse->at(i) = log_sum_exp(head.score, state[i]);
      unpack(tile.o.row(i - q.begin), 1.0f, o, i);
    }
  }

 private:
  SoftmaxState* row(Span q) const { return state + q.begin; }
  void drop(Span q, Span k, Matrix p) {
    for (int64_t q0 = q.begin; q0 < q.end; q0 += kPanel) {
      const Span panel = {q0, min_of(q0 + kPanel, q.end)};
      dropout_tile(head.score, panel, k, tiles.panel[0].z);
      for (int64_t r = 0; r < panel.size(); ++r)
        multiply_row(tiles.panel[0].z.row(r), k.size(), p.row(q0 - q.begin + r));
    }
  }
};

}  // namespace HWY_NAMESPACE

template <>
void forward_standard<HWY_TARGET>(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  const int64_t thread_bytes = forward_standard_bytes(problem, job.pass);
  parallel_for(problem.batch * problem.heads_q, job.pass.threads, [&](int64_t i, int thread) {
    const Sequence& seq = seqs[i / problem.heads_q];
    Arena arena(static_cast<std::byte*>(job.workspace) + thread * thread_bytes);
    ForwardTiles tiles = carve_forward(arena, problem, job.pass, 0);
    const Scores whole = carve_scores(arena, problem);
    const Head head = make_head(problem, job.in, seq, i % problem.heads_q);
    const Rows o = head_rows(problem, job.out.o, seq, Side::kQuery, head.head);
    const StatRows lse = stat_rows(problem, job.out.lse, seq, head.head);
    const StatRows* lse_out = job.out.lse.given() ? &lse : nullptr;

    HWY_NAMESPACE::StandardVisitor visitor{head, o, lse_out, whole.s, whole.state, tiles};
    walk_standard(TileGrid{head.score.mask, job.pass.tile_q, job.pass.tile_kv}, visitor);
    HWY_NAMESPACE::finish_unused(head, o, lse_out);
  });
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
