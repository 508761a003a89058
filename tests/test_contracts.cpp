// What callers build upon, each held by comparing two runs that must agree: keys hidden by a bias,
// lengths by seqused against problems of just that size, parts of a softmax with the whole's LSE,
// and scales of no or negative size.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/rows.h"
#include "support/seed.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise;

using Numbers = std::vector<float>;

Numbers normal(std::size_t count, std::uint64_t salt) {
  std::mt19937_64 random(tilewise_test::seed() + salt);
  std::normal_distribution<float> draw;
  Numbers x(count);
  for (float& v : x) v = draw(random);
  return x;
}

// One head, D = Dv: everything a forward and a backward need, dense.
struct OneHead {
  OneHead(std::int64_t sq, std::int64_t sk, std::int64_t d)
      : sq(sq),
        sk(sk),
        d(d),
        q(normal(sq * d, 1)),
        k(normal(sk * d, 2)),
        v(normal(sk * d, 3)),
        d_o(normal(sq * d, 4)),
        o(sq * d),
        lse(sq),
        dq(sq * d),
        dk(sk * d),
        dv(sk * d) {
    problem.seq_q = sq, problem.seq_kv = sk, problem.head_dim = problem.head_dim_v = d;
  }
  static Tensor rows(Numbers& x, std::int64_t s, std::int64_t d) {
    return make_tensor(x.data(), DType::kF32, 1, s, 1, d);
  }
  void bind() {
    in.q = rows(q, sq, d), in.k = rows(k, sk, d), in.v = rows(v, sk, d);
    grads.o = rows(o, sq, d), grads.lse = make_tensor(lse.data(), DType::kF32, 1, 1, sq);
    grads.d_o = rows(d_o, sq, d);
    grads.dq = rows(dq, sq, d), grads.dk = rows(dk, sk, d), grads.dv = rows(dv, sk, d);
  }
  void forward(const Options& options) {
    bind();
    tilewise_test::run_forward(problem, options, in, {grads.o, grads.lse});
  }
  void backward(const Options& options) {
    bind();
    tilewise_test::run_backward(problem, options, in, grads);
  }

  std::int64_t sq, sk, d;
  Problem problem;
  Numbers q, k, v, d_o, o, lse, dq, dk, dv;
  Inputs in;
  Gradients grads;
};

// The first `count` numbers of both, within `bound`, and all finite.
void expect_near(const Numbers& a, const Numbers& b, std::size_t count, float bound) {
  for (std::size_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    ASSERT_TRUE(std::isfinite(a[i])) << i;
    ASSERT_NEAR(a[i], b[i], bound) << i;
  }
}

TEST(Contracts, AKeyHiddenByABiasLeaksNothing) {
  constexpr std::int64_t kSeq = 70, kDim = 24, kHidden = 33;
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& row : tilewise_test::all_rows())
    for (const float poison : {inf, std::numeric_limits<float>::quiet_NaN()}) {
      SCOPED_TRACE(row.name());
      OneHead clean(kSeq, kSeq, kDim), dirty(kSeq, kSeq, kDim);
      Numbers bias = normal(kSeq * kSeq, 9);
      for (std::int64_t i = 0; i < kSeq; ++i) bias[i * kSeq + kHidden] = -inf;
      dirty.v[kHidden * kDim + 5] = poison;
      for (OneHead* run : {&clean, &dirty}) {
        run->problem.bias.present = true;
        run->in.bias = make_tensor(bias.data(), DType::kF32, 1, 1, kSeq, kSeq);
        run->forward(row.options());
        run->backward(row.options());
      }
      expect_near(dirty.o, clean.o, dirty.o.size(), 1e-5f);
      expect_near(dirty.dq, clean.dq, dirty.dq.size(), 1e-4f);
      expect_near(dirty.dk, clean.dk, dirty.dk.size(), 1e-4f);
      expect_near(dirty.dv, clean.dv, dirty.dv.size(), 1e-4f);
    }
}

// The diagonal, and ALiBi with it, goes by the lengths in use and not by the slots.
TEST(Contracts, SequsedIsAProblemOfThatSize) {
  constexpr std::int64_t kUsedQ = 37, kUsedKv = 51, kDim = 16;
  for (const auto& row : tilewise_test::all_rows())
    for (const Align align : {Align::kBottomRight, Align::kTopLeft}) {
      SCOPED_TRACE(row.name());
      OneHead whole(64, 80, kDim), exact(kUsedQ, kUsedKv, kDim);
      std::int32_t used_q = kUsedQ, used_kv = kUsedKv;
      float slope = 0.25f;
      for (OneHead* run : {&whole, &exact}) {
        run->problem.alibi = Alibi::kPerHead;
        run->problem.mask.left = 9, run->problem.mask.right = 2, run->problem.mask.align = align;
        run->in.alibi_slopes = make_tensor(&slope, DType::kF32, 1);
      }
      whole.problem.varlen.seqused_q = whole.problem.varlen.seqused_kv = true;
      whole.in.seqused_q = make_tensor(&used_q, DType::kI32, 1);
      whole.in.seqused_kv = make_tensor(&used_kv, DType::kI32, 1);
      for (OneHead* run : {&whole, &exact}) {
        run->forward(row.options());
        run->backward(row.options());
      }
      expect_near(whole.o, exact.o, exact.o.size(), 1e-5f);
      expect_near(whole.dq, exact.dq, exact.dq.size(), 1e-4f);
      expect_near(whole.dk, exact.dk, exact.dk.size(), 1e-4f);
      expect_near(whole.dv, exact.dv, exact.dv.size(), 1e-4f);
    }
}

// Ring attention: the backward of a part of the keys, given the whole softmax' O and LSE, yields
// the whole's dK and dV of that part.
TEST(Contracts, TheBackwardTakesTheLseOfAWiderSoftmax) {
  constexpr std::int64_t kSeq = 96, kDim = 32, kPart = 48;
  for (const auto& row : tilewise_test::all_rows()) {
    for (const float size : {1.0f, 6.0f}) {  // 6: logits for which rows are looked at twice
      SCOPED_TRACE(row.name());
      OneHead whole(kSeq, kSeq, kDim);
      for (float& x : whole.q) x *= size;
      whole.forward(row.options());
      whole.backward(row.options());
      OneHead part(kSeq, kPart, kDim);
      part.q = whole.q, part.o = whole.o, part.lse = whole.lse;
      std::copy_n(whole.k.begin(), kPart * kDim, part.k.begin());
      std::copy_n(whole.v.begin(), kPart * kDim, part.v.begin());
      part.backward(row.options());
      // A part has nothing but the f32 LSE, the float64 reference no more than the kernels: P is
      // off by its rounding, which grows with the logits (3.8e-6 at 64 to 128, where size is 6),
      // and dK by that times |q|, which grows too, and |dP - delta|.
      expect_near(part.dk, whole.dk, part.dk.size(), 1e-4f * size * size);
      expect_near(part.dv, whole.dv, part.dv.size(), 1e-4f * size);
    }
  }
}

// No sink, no bias: the path on which the scale is part of the exponent.
TEST(Contracts, AScaleOfZeroAveragesAndANegativeOneTurnsQAround) {
  for (const auto& row : tilewise_test::all_rows()) {
    SCOPED_TRACE(row.name());
    OneHead turned(40, 60, 16), plain(40, 60, 16), flat(40, 60, 16);
    turned.problem.scale = -0.5f, plain.problem.scale = 0.5f, flat.problem.scale = 0.0f;
    for (float& x : turned.q) x = -x;
    for (OneHead* run : {&turned, &plain, &flat}) run->forward(row.options());
    expect_near(turned.o, plain.o, plain.o.size(), 1e-5f);
    expect_near(turned.lse, plain.lse, plain.lse.size(), 1e-5f);
    for (const float lse : flat.lse) EXPECT_NEAR(lse, std::log(60.0f), 1e-6f);
  }
}

}  // namespace
