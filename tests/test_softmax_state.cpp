// The merge of partial softmax results: what splitting the keys must not change.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/softmax_state.h"
#include "support/seed.h"

namespace {

using namespace tilewise;

MergeWeights merge(float a, float b) {
  return merge_lse(
      a, b, [](float x) { return std::exp(x); }, [](float x) { return std::log(x); });
}

TEST(SoftmaxState, TwoEmptyStatesStayEmpty) {
  const MergeWeights m = merge(kMinusInf, kMinusInf);
  EXPECT_EQ(m.a, 0.0f);
  EXPECT_EQ(m.b, 0.0f);
  EXPECT_EQ(m.lse, kMinusInf);
  EXPECT_EQ(softmax_shift(kMinusInf), 0.0f);
}

TEST(SoftmaxState, AnEmptyStateChangesNothing) {
  for (const float x : {-1e30f, -5e4f, -89.0f, 0.0f, 89.0f, 1e4f, 1e30f}) {
    const MergeWeights left = merge(x, kMinusInf), right = merge(kMinusInf, x);
    EXPECT_EQ(left.a, 1.0f);
    EXPECT_EQ(left.b, 0.0f);
    EXPECT_EQ(left.lse, x);
    EXPECT_EQ(right.a, 0.0f);
    EXPECT_EQ(right.b, 1.0f);
    EXPECT_EQ(right.lse, x);
    EXPECT_EQ(softmax_shift(x), x);
  }
}

TEST(SoftmaxState, EqualsTheSumInDouble) {
  std::mt19937_64 random(tilewise_test::seed());
  std::normal_distribution<float> normal;
  for (int round = 0; round < 10000; ++round) {
    const float base = round % 3 == 0 ? -1e4f : 0.0f;
    const float a = base + 20 * normal(random), b = base + 20 * normal(random);
    const MergeWeights m = merge(a, b);
    const double lse = std::fmax(a, b) + std::log1p(std::exp(-std::fabs(double{a} - b)));
    EXPECT_NEAR(m.lse, lse, 2e-7 * std::fabs(lse) + 1e-6);
    EXPECT_NEAR(m.a, std::exp(a - lse), 2e-6);
    EXPECT_NEAR(m.a + m.b, 1.0f, 2e-7f);
    const MergeWeights swapped = merge(b, a);
    EXPECT_EQ(m.lse, swapped.lse);
    EXPECT_EQ(m.a, swapped.b);
  }
}

TEST(SoftmaxState, AnyOrderOfManyMergesAgrees) {
  std::mt19937_64 random(tilewise_test::seed());
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    float x[8], forward = kMinusInf, backward = kMinusInf;
    for (float& e : x) e = random() % 4 == 0 ? kMinusInf : 1e3f + 10 * normal(random);
    for (int i = 0; i < 8; ++i) {
      forward = merge(forward, x[i]).lse;
      backward = merge(x[7 - i], backward).lse;
    }
    if (forward == kMinusInf) {
      EXPECT_EQ(backward, kMinusInf);
    } else {
      EXPECT_NEAR(forward, backward, 1e-3f);
    }
  }
}

TEST(SoftmaxState, NaNStaysNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(merge(nan, 1.0f).lse));
  EXPECT_TRUE(std::isnan(merge(1.0f, nan).lse));
  EXPECT_TRUE(std::isnan(merge(nan, kMinusInf).lse));
  EXPECT_TRUE(std::isnan(merge(kMinusInf, nan).lse));
}

}  // namespace
