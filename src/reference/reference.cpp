// The oracle, as the definitions read. With P the softmax (sink in the denominator), Z the dropout
// factors, o the elementwise product and t = tanh(x / c) for a softcap c of the scaled product x:
//
//   O = (P o Z) V                        dV = (P o Z)^T dO
//   G = (dO V^T) o Z                     Delta_i = sum_j P_ij G_ij
//   dS = P o (G - Delta + dLSE)          dbias = dS        dsink = P_sink (dLSE - Delta)
//   dX = dS o (1 - t^2)                  dQ = scale dX K   dK = scale dX^T Q
#include "reference/reference.h"

#include <cmath>
#include <limits>

#include "reference/collect.h"

namespace tilewise::reference {
namespace {

using Dense = Matrix<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Softmax {
  Dense p;                     // (q, kv) probabilities, 0 where hidden
  Dense cap_slope;             // (q, kv) 1 - tanh^2 of the softcap; empty without one
  std::vector<double> lse;     // (q)
  std::vector<double> p_sink;  // (q) what the sink takes
};

// Scores with everything added; -inf where the key is hidden.
Dense scores(const Head& head, const Dense& q, const Dense& k, Dense& cap_slope) {
  Dense s = product(q, transposed(k));
  const double scale = head.scale(), cap = head.problem.softcap;
  if (cap > 0) cap_slope = Dense(s.rows, s.cols);
  for (std::int64_t i = 0; i < s.rows; ++i)
    for (std::int64_t j = 0; j < s.cols; ++j) {
      double x = scale * s(i, j);
      if (cap > 0) {
        const double t = std::tanh(x / cap);
        cap_slope(i, j) = 1 - t * t;
        x = cap * t;
      }
      s(i, j) = head.visible(i, j) ? x + head.alibi(i, j) + head.bias(i, j) : -kInf;
    }
  return s;
}

Softmax softmax(const Head& head, const Dense& q, const Dense& k) {
  Softmax r;
  r.p = scores(head, q, k, r.cap_slope);
  r.lse.assign(r.p.rows, -kInf);
  r.p_sink.assign(r.p.rows, 0.0);
  const double sink = head.problem.sink ? head.sink() : -kInf;
  for (std::int64_t i = 0; i < r.p.rows; ++i) {
    double* s = r.p.row(i);
    double top = sink;
    for (std::int64_t j = 0; j < r.p.cols; ++j) top = std::fmax(top, s[j]);
    double sum = top == -kInf ? 0 : std::exp(sink - top);
    for (std::int64_t j = 0; j < r.p.cols; ++j) sum += s[j] == -kInf ? 0 : std::exp(s[j] - top);
    r.lse[i] = top == -kInf ? -kInf : top + std::log(sum);
    // Dividing by the sum, not subtracting LSE, keeps P exact when |LSE| is large.
    for (std::int64_t j = 0; j < r.p.cols; ++j)
      s[j] = s[j] == -kInf ? 0 : std::exp(s[j] - top) / sum;
    r.p_sink[i] = sink == -kInf ? 0 : std::exp(sink - top) / sum;
  }
  return r;
}

Dense dropped(const Head& head, Dense a) {
  if (head.problem.dropout_p > 0)
    for (std::int64_t i = 0; i < a.rows; ++i)
      for (std::int64_t j = 0; j < a.cols; ++j) a(i, j) *= head.dropout(i, j);
  return a;
}

double absolute(double x) {
  return std::abs(x);
}

enum class Terms { kSigned, kAbsolute };

// Rows whose LSE is given by a wider softmax than their own: P shrinks to its share of that, and
// Delta_i = sum_d O_id dO_id, of the whole's O, is returned; NaN for the other rows.
std::vector<double> widen(const Head& head, const Outputs& given, const Dense& g_o, Softmax& soft) {
  std::vector<double> delta(soft.lse.size(), std::numeric_limits<double>::quiet_NaN());
  if (!given.lse.given()) return delta;
  const Dense o = gather<double>(given.o, head.q, head.head);
  for (std::int64_t i = 0; i < soft.p.rows; ++i) {
    const double own = soft.lse[i], whole = lse_gradient(head, given.lse, i);
    if (!std::isfinite(own) || !std::isfinite(whole)) continue;
    if (std::abs(whole - own) <= 1e-6 * std::fmax(1, std::abs(own))) continue;
    const double share = std::exp(own - whole);
    for (std::int64_t j = 0; j < soft.p.cols; ++j) soft.p(i, j) *= share;
    soft.p_sink[i] *= share;
    delta[i] = 0;
    for (std::int64_t d = 0; d < o.cols; ++d) delta[i] += o(i, d) * g_o(i, d);
  }
  return delta;
}

HeadGradients<double> head_backward(const Head& head, const Gradients& grads, Terms terms) {
  const Inputs& in = head.in;
  const Tensor &d_o = grads.d_o, &d_lse = grads.d_lse;
  Dense q = gather<double>(in.q, head.q, head.head);
  Dense k = gather<double>(in.k, head.kv, head.kv_head());
  Dense v = gather<double>(in.v, head.kv, head.kv_head());
  Dense g_o = gather<double>(d_o, head.q, head.head);
  Softmax soft = softmax(head, q, k);
  const std::vector<double> wider_delta = widen(head, {grads.o, grads.lse}, g_o, soft);
  double scale = head.scale();
  if (terms == Terms::kAbsolute) {
    q = mapped(q, absolute), k = mapped(k, absolute), v = mapped(v, absolute);
    g_o = mapped(g_o, absolute);
    scale = std::abs(scale);
  }

  HeadGradients<double> r;
  r.dv = product(transposed(dropped(head, soft.p)), g_o, ZeroWeights::kSkip);
  r.ds = dropped(head, product(g_o, transposed(v)));
  for (std::int64_t i = 0; i < r.ds.rows; ++i) {
    double* g = r.ds.row(i);
    const double* p = soft.p.row(i);
    double delta = 0;
    for (std::int64_t j = 0; j < r.ds.cols; ++j) delta += p[j] == 0 ? 0 : p[j] * g[j];
    if (!std::isnan(wider_delta[i])) delta = wider_delta[i];
    double shift = lse_gradient(head, d_lse, i) - delta;
    if (terms == Terms::kAbsolute) shift = std::abs(lse_gradient(head, d_lse, i)) + delta;
    for (std::int64_t j = 0; j < r.ds.cols; ++j) g[j] = p[j] == 0 ? 0 : p[j] * (g[j] + shift);
    if (soft.p_sink[i] != 0) r.dsink += soft.p_sink[i] * shift;
  }
  Dense dx = mapped(r.ds, [&](double x) { return x * scale; });
  if (head.problem.softcap > 0)
    for (std::size_t at = 0; at < dx.data.size(); ++at) {
      const double slope = soft.cap_slope.data[at];  // 1 - t^2, or 1 + t^2
      dx.data[at] *= terms == Terms::kSigned ? slope : 2 - slope;
    }
  r.dq = product(dx, k, ZeroWeights::kSkip);
  r.dk = product(transposed(dx), q, ZeroWeights::kSkip);
  return r;
}

Gradients only(const Tensor& d_o, const Tensor& d_lse) {
  Gradients grads;
  grads.d_o = d_o;
  grads.d_lse = d_lse;
  return grads;
}

}  // namespace

ForwardResult forward(const Problem& p, const Inputs& in) {
  return collect_forward(p, in, [&](const Head& head) {
    Softmax soft = softmax(head, gather<double>(in.q, head.q, head.head),
                           gather<double>(in.k, head.kv, head.kv_head()));
    const Dense v = gather<double>(in.v, head.kv, head.kv_head());
    return HeadOutput<double>{product(dropped(head, std::move(soft.p)), v, ZeroWeights::kSkip),
                              std::move(soft.lse)};
  });
}

std::vector<double> logit_magnitude(const Problem& p, const Inputs& in) {
  const auto per_head = [&](const Head& head) {
    const Dense q = mapped(gather<double>(in.q, head.q, head.head), absolute);
    const Dense k = mapped(gather<double>(in.k, head.kv, head.kv_head()), absolute);
    const Dense s = product(q, transposed(k));
    HeadOutput<double> r{Dense(head.q.used, p.head_dim_v), std::vector<double>(head.q.used)};
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::int64_t j = 0; j < s.cols; ++j) {
        const double bias = head.bias(i, j);
        if (!head.visible(i, j) || bias == -kInf) continue;
        const double terms = std::abs(head.scale()) * s(i, j) + std::abs(head.alibi(i, j));
        r.lse[i] = std::fmax(r.lse[i], terms + std::abs(bias));
      }
    return r;
  };
  std::vector<double> largest = collect_forward(p, in, per_head).lse;
  for (double& x : largest) x = std::fmax(x, 0);
  return largest;
}

BackwardResult backward(const Problem& p, const Inputs& in, const Tensor& d_o,
                        const Tensor& d_lse) {
  return backward_given(p, in, only(d_o, d_lse));
}

BackwardResult backward_given(const Problem& p, const Inputs& in, const Gradients& grads) {
  return collect_backward(
      p, in, [&](const Head& head) { return head_backward(head, grads, Terms::kSigned); });
}

BackwardResult backward_magnitude(const Problem& p, const Inputs& in, const Tensor& d_o,
                                  const Tensor& d_lse) {
  const Gradients grads = only(d_o, d_lse);
  return collect_backward(
      p, in, [&](const Head& head) { return head_backward(head, grads, Terms::kAbsolute); });
}

}  // namespace tilewise::reference
