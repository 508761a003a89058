// See low.h. One line is one operation of an eager framework.
#include "reference/low.h"

#include <cmath>
#include <limits>

#include "reference/collect.h"

namespace tilewise::reference {
namespace {

using Low = Matrix<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();

Low rounded(DType dtype, Low a) {
  for (float& x : a.data) x = round_to(dtype, x);
  return a;
}

// f(x, y) of two matrices of one shape, rounded.
template <class F>
Low combined(DType dtype, Low a, const Low& b, F f) {
  for (std::size_t i = 0; i < a.data.size(); ++i)
    a.data[i] = round_to(dtype, f(a.data[i], b.data[i]));
  return a;
}

// A (Sq, Sk) tensor made of f(i, j).
template <class F>
Low table(const Head& head, F f) {
  Low a(head.q.used, head.kv.used);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j)
      a(i, j) = round_to(head.problem.dtype, static_cast<float>(f(i, j)));
  return a;
}

float add(float a, float b) {
  return a + b;
}
float multiply(float a, float b) {
  return a * b;
}

struct Graph {
  Low q, k, v;
  Low tanh;     // of the softcap; empty without one
  Low p;        // softmax, without the sink's column
  Low dropout;  // factors; empty without dropout
  Low kept;     // p times the factors
  std::vector<float> p_sink;
  std::vector<double> lse;  // float32 arithmetic
};

// Softmax over the row and the sink's column, computed in float32 inside, as frameworks do.
void softmax(const Head& head, const Low& s, Graph& g) {
  const DType dtype = head.problem.dtype;
  const float sink = head.problem.sink ? round_to(dtype, static_cast<float>(head.sink())) : -kInf;
  g.p = Low(s.rows, s.cols);
  g.p_sink.assign(s.rows, 0.0f);
  g.lse.assign(s.rows, -kInf);
  for (std::int64_t i = 0; i < s.rows; ++i) {
    float top = sink;
    for (std::int64_t j = 0; j < s.cols; ++j) top = std::fmax(top, s(i, j));
    if (top == -kInf) continue;  // frameworks give NaN here; the documented answer is 0
    float sum = std::exp(sink - top);
    for (std::int64_t j = 0; j < s.cols; ++j) sum += std::exp(s(i, j) - top);
    for (std::int64_t j = 0; j < s.cols; ++j)
      g.p(i, j) = round_to(dtype, std::exp(s(i, j) - top) / sum);
    g.p_sink[i] = round_to(dtype, std::exp(sink - top) / sum);
    g.lse[i] = top + std::log(sum);
  }
}

Graph run_forward(const Head& head) {
  const Problem& p = head.problem;
  const DType dtype = p.dtype;
  const Inputs& in = head.in;
  Graph g;
  g.q = gather<float>(in.q, head.q, head.head);
  g.k = gather<float>(in.k, head.kv, head.kv_head());
  g.v = gather<float>(in.v, head.kv, head.kv_head());
  const float scale = static_cast<float>(head.scale()), cap = p.softcap;
  // The product takes the scale along, before its result is rounded.
  Low s = mapped(product(g.q, transposed(g.k)), [=](float x) { return x * scale; });
  s = rounded(dtype, std::move(s));
  if (cap > 0) {
    s = rounded(dtype, mapped(std::move(s), [=](float x) { return x / cap; }));
    g.tanh = rounded(dtype, mapped(std::move(s), [](float x) { return std::tanh(x); }));
    s = rounded(dtype, mapped(g.tanh, [=](float x) { return x * cap; }));
  }
  if (p.alibi != Alibi::kNone)
    s = combined(dtype, std::move(s), table(head, [&](auto i, auto j) { return head.alibi(i, j); }),
                 add);
  if (p.bias.present)
    s = combined(dtype, std::move(s), table(head, [&](auto i, auto j) { return head.bias(i, j); }),
                 add);
  for (std::int64_t i = 0; i < s.rows; ++i)
    for (std::int64_t j = 0; j < s.cols; ++j)
      if (!head.visible(i, j)) s(i, j) = -kInf;
  softmax(head, s, g);
  g.kept = g.p;
  if (p.dropout_p > 0) {
    g.dropout = table(head, [&](auto i, auto j) { return head.dropout(i, j); });
    g.kept = combined(dtype, g.p, g.dropout, multiply);
  }
  return g;
}

// sum_j P_ij dP_ij for each row.
std::vector<float> row_sums(const Head& head, const Graph& g, const Low& dp, const Low& g_o,
                            RowSum from) {
  std::vector<float> sums(dp.rows, 0.0f);
  if (from == RowSum::kSoftmax) {
    for (std::int64_t i = 0; i < dp.rows; ++i)
      for (std::int64_t j = 0; j < dp.cols; ++j)
        if (g.p(i, j) != 0) sums[i] += g.p(i, j) * dp(i, j);
    return sums;
  }
  const Problem& p = head.problem;
  const Low o = rounded(p.out_dtype.value_or(p.dtype), product(g.kept, g.v, ZeroWeights::kSkip));
  for (std::int64_t i = 0; i < o.rows; ++i)
    for (std::int64_t d = 0; d < o.cols; ++d)
      if (o(i, d) != 0) sums[i] += o(i, d) * g_o(i, d);
  return sums;
}

// The gradient of the softmax's input, from that of its result.
Low softmax_backward(const Head& head, const Graph& g, const Low& dp,
                     const std::vector<float>& row_sum, double* dsink) {
  const DType dtype = head.problem.dtype;
  Low ds(dp.rows, dp.cols);
  *dsink = 0;
  for (std::int64_t i = 0; i < dp.rows; ++i) {
    const float delta = row_sum[i];
    for (std::int64_t j = 0; j < dp.cols; ++j)
      if (g.p(i, j) != 0) ds(i, j) = round_to(dtype, g.p(i, j) * (dp(i, j) - delta));
    *dsink += round_to(dtype, -g.p_sink[i] * delta);
  }
  return ds;
}

HeadGradients<float> run_backward(const Head& head, const Tensor& d_o, const Tensor& d_lse,
                                  RowSum row_sum) {
  const Problem& p = head.problem;
  const DType dtype = p.dtype;
  const Graph g = run_forward(head);
  const Low g_o = rounded(dtype, gather<float>(d_o, head.q, head.head));
  HeadGradients<float> r;
  r.dv = rounded(dtype, product(transposed(g.kept), g_o, ZeroWeights::kSkip));
  Low dp = rounded(dtype, product(g_o, transposed(g.v)));
  if (p.dropout_p > 0) dp = combined(dtype, std::move(dp), g.dropout, multiply);
  r.ds = softmax_backward(head, g, dp, row_sums(head, g, dp, g_o, row_sum), &r.dsink);
  if (d_lse.given()) {
    std::vector<float> g_lse;
    for (std::int64_t i = 0; i < head.q.used; ++i)
      g_lse.push_back(round_to(dtype, static_cast<float>(lse_gradient(head, d_lse, i))));
    r.ds = combined(
        dtype, std::move(r.ds),
        table(head, [&](auto i, auto j) { return g.p(i, j) == 0 ? 0.0f : g_lse[i] * g.p(i, j); }),
        add);
    for (std::int64_t i = 0; i < head.q.used; ++i)
      if (g.p_sink[i] != 0) r.dsink += round_to(dtype, g_lse[i] * g.p_sink[i]);
  }
  Low dx = r.ds;
  if (p.softcap > 0)
    dx = combined(dtype, std::move(dx), g.tanh, [](float x, float t) { return x * (1 - t * t); });
  const float scale = static_cast<float>(head.scale());
  const auto scaled = [=](float x) { return x * scale; };
  r.dq = rounded(dtype, mapped(product(dx, g.k, ZeroWeights::kSkip), scaled));
  r.dk = rounded(dtype, mapped(product(transposed(dx), g.q, ZeroWeights::kSkip), scaled));
  return r;
}

void round_all(DType dtype, std::vector<double>& x) {
  for (double& e : x) e = round_to(dtype, static_cast<float>(e));
}

}  // namespace

ForwardResult low_forward(const Problem& p, const Inputs& in) {
  return collect_forward(p, in, [&](const Head& head) {
    Graph g = run_forward(head);
    return HeadOutput<float>{rounded(p.dtype, product(g.kept, g.v, ZeroWeights::kSkip)),
                             std::move(g.lse)};
  });
}

BackwardResult low_backward(const Problem& p, const Inputs& in, const Tensor& d_o,
                            const Tensor& d_lse, RowSum row_sum) {
  BackwardResult r = collect_backward(
      p, in, [&](const Head& head) { return run_backward(head, d_o, d_lse, row_sum); });
  // The sums over a group's heads and over broadcast dimensions are operations of their own.
  for (auto* x : {&r.dk, &r.dv, &r.dbias, &r.dsink}) round_all(p.dtype, *x);
  return r;
}

}  // namespace tilewise::reference
