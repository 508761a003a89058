// Runs a function over every head of a problem and puts what it gives into dense results. Heads are
// computed in parallel and added in order, so that the sums never depend on threads.
#pragma once

#include <limits>

#include "reference/heads.h"
#include "reference/reference.h"

namespace tilewise::reference {

template <class T>
struct HeadOutput {
  Matrix<T> o;              // (q, Dv)
  std::vector<double> lse;  // (q)
};

template <class T>
struct HeadGradients {
  Matrix<T> dq, dk, dv, ds;  // (q, D), (kv, D), (kv, Dv), (q, kv)
  double dsink = 0;
};

template <class PerHead>
ForwardResult collect_forward(const Problem& p, const Inputs& in, PerHead per_head) {
  ForwardResult r;
  r.o.assign(total_rows_q(p) * p.heads_q * p.head_dim_v, 0.0);
  r.lse.assign(total_rows_q(p) * p.heads_q, -std::numeric_limits<double>::infinity());
#pragma omp parallel for schedule(static, 1)
  for (std::int64_t bh = 0; bh < p.batch * p.heads_q; ++bh) {
    const Head head(p, in, bh / p.heads_q, bh % p.heads_q);
    const auto out = per_head(head);
    scatter_add(out.o, head.q, head.head, p.heads_q, r.o);
    for (std::int64_t i = 0; i < head.q.used; ++i) r.lse[head.lse_index(i)] = out.lse[i];
  }
  return r;
}

template <class PerHead>
BackwardResult collect_backward(const Problem& p, const Inputs& in, PerHead per_head) {
  BackwardResult r;
  r.dq.assign(total_rows_q(p) * p.heads_q * p.head_dim, 0.0);
  r.dk.assign(total_rows_kv(p) * p.heads_kv * p.head_dim, 0.0);
  r.dv.assign(total_rows_kv(p) * p.heads_kv * p.head_dim_v, 0.0);
  r.dbias.assign(bias_elements(p), 0.0);
  r.dsink.assign(p.sink ? p.heads_q : 0, 0.0);
#pragma omp parallel for ordered schedule(static, 1)
  for (std::int64_t bh = 0; bh < p.batch * p.heads_q; ++bh) {
    const Head head(p, in, bh / p.heads_q, bh % p.heads_q);
    const auto g = per_head(head);
#pragma omp ordered
    {
      scatter_add(g.dq, head.q, head.head, p.heads_q, r.dq);
      scatter_add(g.dk, head.kv, head.kv_head(), p.heads_kv, r.dk);
      scatter_add(g.dv, head.kv, head.kv_head(), p.heads_kv, r.dv);
      if (p.sink) r.dsink[head.head] += g.dsink;
      if (p.bias.present)
        for (std::int64_t i = 0; i < g.ds.rows; ++i)
          for (std::int64_t j = 0; j < g.ds.cols; ++j) r.dbias[head.bias_index(i, j)] += g.ds(i, j);
    }
  }
  return r;
}

}  // namespace tilewise::reference
