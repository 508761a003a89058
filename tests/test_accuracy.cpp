// Every kernel row, on every SIMD tier of this machine, over the quick grid: forward and backward
// within the accuracy rule, every output element written, nothing else touched.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "reference/check.h"
#include "reference/grid.h"
#include "support/rows.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;
using tilewise_test::Row, tilewise_test::all_rows;

// The cases are shared: building the oracle costs more than running the kernels on it.
class Accuracy : public testing::TestWithParam<int> {};
constexpr int kShards = 8;

TEST_P(Accuracy, EveryRowEveryTier) {
  const std::uint64_t seed = tilewise_test::seed();
  const std::vector<Case> cases = quick_grid(seed);
  int ran = 0;
  for (std::size_t i = GetParam(); i < cases.size(); i += kShards) {
    const Case& c = cases[i];
    Trial trial(c, seed + i);
    for (const Row& row : all_rows()) {
      const Report report = check(trial, row.options(1 + static_cast<int>(i % 3)));
      if (report.unsupported) continue;
      ++ran;
      for (const std::string& failure : report.failures)
        ADD_FAILURE() << row.name() << " case " << i << " [" << c.name << "]: " << failure;
    }
  }
  EXPECT_GE(ran, static_cast<int>(cases.size()) / kShards);
}

INSTANTIATE_TEST_SUITE_P(Shard, Accuracy, testing::Range(0, kShards));

// Tile sizes are the caller's to choose; edges move with them.
TEST(AccuracyTiles, AnyTileSizes) {
  const std::uint64_t seed = tilewise_test::seed();
  CaseMaker make(seed);
  for (int round = 0; round < 12; ++round) {
    const Case c = make.make({2, 4, 2, make.pick(1, 140), make.pick(1, 140), 40, 24},
                             make.any_dtype(), make.any_features(4));
    Trial trial(c, seed + static_cast<std::uint64_t>(round));
    for (const std::int64_t tile_q : {16, 48, 128})
      for (const std::int64_t tile_kv : {16, 80, 128})
        for (const std::string& kernel : kernel_names()) {
          Options options;
          options.kernel = kernel, options.tile_q = tile_q, options.tile_kv = tile_kv;
          for (const std::string& failure : check(trial, options).failures)
            ADD_FAILURE() << kernel << " tiles " << tile_q << "x" << tile_kv << " [" << c.name
                          << "]: " << failure;
        }
  }
}

// The rule must fail what is wrong: each of these is one kind of mistake that kernels make.
class Rule : public testing::Test {
 protected:
  Rule() : c_(make_case()), w_(c_, tilewise_test::seed()) {
    oracle_ = make_oracle(c_.problem, w_.in, w_.grads, Passes::kForward);
    out_.assign(oracle_.ref.o.begin(), oracle_.ref.o.end());
  }
  static Case make_case() {
    Case c;
    c.problem.seq_q = 40, c.problem.seq_kv = 50, c.problem.head_dim = c.problem.head_dim_v = 32;
    return c;
  }
  bool passes() {
    const Tensor t = make_tensor(out_.data(), DType::kF32, out_.size());
    return judge(measure({"O", t, oracle_.ref.o, oracle_.low.o, DType::kF32})).pass;
  }

  Case c_;
  Workload w_;
  Oracle oracle_;
  std::vector<float> out_;
};

TEST_F(Rule, PassesTheRoundedReference) {
  EXPECT_TRUE(passes());
}
TEST_F(Rule, FailsOneWrongElement) {
  out_[17] += 3e-5f;
  EXPECT_FALSE(passes());
}
TEST_F(Rule, FailsASmallBiasEverywhere) {
  for (float& x : out_) x *= 1 + 3e-6f;
  EXPECT_FALSE(passes());
}
TEST_F(Rule, FailsNaNAndInfinity) {
  const float good = out_[5];
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    out_[5] = bad;
    EXPECT_FALSE(passes());
  }
  out_[5] = good;
  EXPECT_TRUE(passes());
}

}  // namespace
