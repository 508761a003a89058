// What backs the reference itself: its gradients against finite differences of its forward in
// float64, for every feature, and its forward against numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/philox.h"
#include "reference/element.h"
#include "reference/grid.h"
#include "reference/reference.h"
#include "reference/workload.h"
#include "support/seed.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The number whose gradients `backward` gives: sum dO O + sum dLSE LSE. Rows that see no key bring
// nothing through LSE unless a sink makes it finite.
double objective(const Problem& p, const Workload& w) {
  const ForwardResult r = forward(p, w.in);
  double sum = 0;
  std::size_t at = 0;
  for_each_offset(w.grads.d_o, [&](std::int64_t offset) {
    const double o = r.o[at++], g = load_element(w.grads.d_o, offset);
    sum += o == 0 ? 0 : o * g;
  });
  at = 0;
  if (w.grads.d_lse.given())
    for_each_offset(w.grads.d_lse, [&](std::int64_t offset) {
      const double lse = r.lse[at++];
      if (!std::isinf(lse)) sum += lse * load_element(w.grads.d_lse, offset);
    });
  return sum;
}

// The central difference over x +- h, with h as the float makes it.
double slope(const Problem& p, const Workload& w, const Tensor& t, std::int64_t offset, double h) {
  const double x = load_element(t, offset);
  const float up = static_cast<float>(x + h), down = static_cast<float>(x - h);
  store_element(t, offset, up);
  const double high = objective(p, w);
  store_element(t, offset, down);
  const double low = objective(p, w);
  store_element(t, offset, x);
  return (high - low) / (static_cast<double>(up) - static_cast<double>(down));
}

void check_slopes(const Problem& p, const Workload& w, const Tensor& t, const char* name,
                  const std::vector<double>& gradient) {
  ASSERT_EQ(static_cast<std::size_t>(t.given() ? t.elements() : 0), gradient.size()) << name;
  std::size_t at = 0;
  if (gradient.empty()) return;
  for_each_offset(t, [&](std::int64_t offset) {
    const double want = gradient[at++], x = load_element(t, offset);
    if (!std::isfinite(x)) {  // poison that nobody reads, or a key hidden by -inf
      EXPECT_EQ(want, 0) << name;
      return;
    }
    // Richardson: the h^2 term of the two differences cancels.
    const double h = 1.0 / 256;
    const double d = (4 * slope(p, w, t, offset, h / 2) - slope(p, w, t, offset, h)) / 3;
    EXPECT_NEAR(d, want, 2e-6 * (1 + std::abs(want))) << name << " at " << at - 1;
  });
}

void check_case(const Case& c) {
  SCOPED_TRACE(c.name);
  Workload w(c, tilewise_test::seed());
  const BackwardResult g = backward(c.problem, w.in, w.grads.d_o, w.grads.d_lse);
  check_slopes(c.problem, w, w.in.q, "dQ", g.dq);
  check_slopes(c.problem, w, w.in.k, "dK", g.dk);
  check_slopes(c.problem, w, w.in.v, "dV", g.dv);
  check_slopes(c.problem, w, w.in.bias, "dbias", g.dbias);
  check_slopes(c.problem, w, w.in.sink, "dsink", g.dsink);
}

Shape small_shape(CaseMaker& make) {
  const std::int64_t group = make.pick(1, 3);
  return {2, group, 1, make.pick(1, 5), make.pick(1, 6), make.pick(1, 4), make.pick(1, 3)};
}

TEST(Reference, GradientsEqualFiniteDifferences) {
  CaseMaker make(tilewise_test::seed());
  for (const std::string& feature : feature_names())
    for (const char* beside : {"dlse", "causal", "softcap", "sink", "bias", "dropout"}) {
      Case c = make.make(small_shape(make), DType::kF32, {feature, beside});
      c.kind = InputKind::kNormal;
      check_case(c);
    }
}

TEST(Reference, VarlenGradientsEqualFiniteDifferences) {
  CaseMaker make(tilewise_test::seed() + 1);
  for (int pattern = 0; pattern < kLengthPatterns; ++pattern)
    for (int round = 0; round < 6; ++round) {
      Shape s = small_shape(make);
      s.batch = 3;
      Case c = make.make_varlen(s, DType::kF32, make.any_features(4),
                                static_cast<LengthPattern>(pattern));
      c.kind = InputKind::kNormal;
      check_case(c);
    }
}

// One query, two keys, D = 1: everything can be said in closed form.
struct TwoKeys {
  float q = 1, k[2] = {0, 0}, v[2] = {1, 3}, bias[2] = {0, 0}, sink = 0, slope = 1;
  Problem p;
  TwoKeys() { p.seq_q = 1, p.seq_kv = 2, p.head_dim = 1, p.head_dim_v = 1; }
  ForwardResult run() {
    Inputs in;
    in.q = make_tensor(&q, DType::kF32, 1, 1, 1, 1);
    in.k = make_tensor(k, DType::kF32, 1, 2, 1, 1);
    in.v = make_tensor(v, DType::kF32, 1, 2, 1, 1);
    in.bias = make_tensor(bias, DType::kF32, 1, 1, 1, 2);
    in.sink = make_tensor(&sink, DType::kF32, 1);
    in.alibi_slopes = make_tensor(&slope, DType::kF32, 1);
    return forward(p, in);
  }
};

TEST(Reference, EqualKeysGiveTheMean) {
  const ForwardResult r = TwoKeys().run();
  EXPECT_DOUBLE_EQ(r.o[0], 2);
  EXPECT_DOUBLE_EQ(r.lse[0], std::log(2.0));
}

TEST(Reference, ScaleSoftcapAlibiBiasInThatOrder) {
  TwoKeys t;
  t.k[0] = 2, t.k[1] = 4;
  t.bias[0] = 0.25f, t.bias[1] = -0.5f;
  t.p.scale = 0.5f, t.p.softcap = 3, t.p.alibi = Alibi::kPerHead, t.p.bias.present = true;
  // off = 1: key 1 is on the diagonal, key 0 one away.
  const double s0 = 3 * std::tanh(1.0 / 3) - 1 + 0.25, s1 = 3 * std::tanh(2.0 / 3) - 0.5;
  const double e0 = std::exp(s0), e1 = std::exp(s1);
  const ForwardResult r = t.run();
  EXPECT_NEAR(r.o[0], (e0 + 3 * e1) / (e0 + e1), 1e-14);
  EXPECT_NEAR(r.lse[0], std::log(e0 + e1), 1e-14);
}

TEST(Reference, SinkJoinsTheDenominatorOnly) {
  TwoKeys t;
  t.p.sink = true, t.sink = std::log(2.0f);
  const ForwardResult r = t.run();
  EXPECT_NEAR(r.o[0], 1, 1e-7);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-7);
}

TEST(Reference, CausalAlignment) {
  TwoKeys t;
  t.p.mask.causal = true;
  EXPECT_DOUBLE_EQ(t.run().o[0], 2);  // bottom-right: the last query sees all
  t.p.mask.align = Align::kTopLeft;
  EXPECT_DOUBLE_EQ(t.run().o[0], 1);  // top-left: query 0 sees key 0
  t.p.mask = {.left = 0, .right = 0};
  EXPECT_DOUBLE_EQ(t.run().o[0], 3);  // only the diagonal, key 1
}

TEST(Reference, BiasOfMinusInfinityHides) {
  TwoKeys t;
  t.p.bias.present = true, t.bias[0] = -kInf;
  EXPECT_DOUBLE_EQ(t.run().o[0], 3);
  t.bias[1] = -kInf;
  EXPECT_EQ(t.run().o[0], 0);
  EXPECT_EQ(t.run().lse[0], -kInf);
  t.p.sink = true, t.sink = -7;
  EXPECT_EQ(t.run().lse[0], -7);
  EXPECT_EQ(t.run().o[0], 0);
}

TEST(Reference, LogitsOfAnySizeAreRight) {
  for (const float base : {-3e38f, -5e4f, 5e4f, 3e38f}) {
    TwoKeys t;
    t.p.scale = 1.0f, t.k[0] = t.k[1] = base;
    EXPECT_DOUBLE_EQ(t.run().o[0], 2);
    EXPECT_DOUBLE_EQ(t.run().lse[0], base + std::log(2.0));
  }
}

TEST(Reference, DropoutLeavesLseAndScalesWhatItKeeps) {
  TwoKeys t;
  t.p.dropout_p = 0.5f;
  const ForwardResult r = t.run();
  EXPECT_DOUBLE_EQ(r.lse[0], std::log(2.0));
  const DropoutRule rule{dropout_key(0, 0), 32768};
  const double want = dropout_keep(rule, 0, 0, 0, 0) * 1.0 + dropout_keep(rule, 0, 0, 0, 1) * 3.0;
  EXPECT_DOUBLE_EQ(r.o[0], want);
}

}  // namespace
