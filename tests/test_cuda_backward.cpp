// The kernels of the CUDA backward compile to machine code that keeps its promises; what a plan
// says of it. No GPU; the first part needs NVRTC.
#include <gtest/gtest.h>

#include "cuda/backward_table.h"
#include "cuda/table.h"
#include "support/cubin_report.h"

namespace tilewise::cuda {
namespace {

using sm90::BackwardConfig;
using test::why_no_compiler;

Problem problem_of(std::int64_t head_dim, std::int64_t head_dim_v, bool causal) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_kv = 256;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v;
  p.mask.causal = causal;
  return p;
}

// The products that the main kernel's code has to hold at least: of each consumer, or of each role.
int products_of(const BackwardConfig& c) {
  const int scores = c.head_dim / 16 + c.head_dim_v / 16, sums = 2 * c.tile_q / 16;
  return scores + sums + c.tile_kv / 16;
}

BackwardConfig config_of(const Problem& p, bool deterministic) {
  Options options;
  options.deterministic = deterministic;
  return backward_config(p, options);
}

void expect_sound_main(const Problem& p, bool deterministic) {
  const BackwardConfig config = config_of(p, deterministic);
  ASSERT_EQ(why_not(config), nullptr) << config_text(config);
  test::expect_sound_kernel(kernel_source(config, BackwardKernel::kMain),
                            {config_text(config), config.kThreads, products_of(config)});
}

class CudaBackward : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(CudaBackward, RowCompilesWithoutSpills) {
  const int d = backward_table()[GetParam()].max_head_dim;
  Problem p = problem_of(d, d, GetParam() % 2);
  expect_sound_main(p, true);
  p.mask.causal = !p.mask.causal;
  p.seq_kv = 1 << 16;
  expect_sound_main(p, false);
  p.mask.causal = false;
  p.mask.left = 100;
  p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_kv = true;
  expect_sound_main(p, true);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaBackward,
                         testing::Range(std::size_t{0}, backward_table().size()));

TEST(CudaBackwardFeatures, EachCompilesWithoutSpills) {
  if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  const Problem base = problem_of(128, 128, false);
  Problem scores = base, bias = base, dropout = base, packed = base, unequal = base;
  scores.softcap = 30, scores.alibi = Alibi::kPerHead, scores.sink = true;
  bias.bias = {true, true, false, false, false, DType::kBF16};
  dropout.dropout_p = 0.1f;
  packed.varlen.cu_seqlens_q = packed.varlen.cu_seqlens_kv = packed.varlen.seqused_kv = true;
  packed.mask.causal = true;
  unequal.head_dim = 192;
  for (const Problem& p : {scores, bias, dropout, packed, unequal}) expect_sound_main(p, true);
}

TEST(CudaBackwardParts, CompileWithoutSpills) {
  if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  Problem p = problem_of(128, 128, true);
  p.sink = true;
  p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_kv = true;
  p.bias = {true, false, true, false, false, DType::kF32};
  const BackwardConfig c = config_of(p, true);
  for (const auto kernel : {BackwardKernel::kPrepare, BackwardKernel::kReplay,
                            BackwardKernel::kFinish, BackwardKernel::kBias}) {
    const bool products = kernel == BackwardKernel::kReplay || kernel == BackwardKernel::kBias;
    test::expect_sound_kernel(kernel_source(c, kernel),
                              {config_text(c), products ? c.kRecomputeThreads : c.kRowThreads,
                               products ? (c.head_dim + c.head_dim_v) / 16 : 0});
  }
  for (const BackwardRow& row : backward_table()) {
    const int d = row.max_head_dim;
    const BackwardConfig plain = config_of(problem_of(d, d, true), false);
    test::expect_sound_kernel(kernel_source(plain, BackwardKernel::kReplay),
                              {config_text(plain), plain.kRecomputeThreads, d / 8});
  }
}

// Memory: linear in the sequence, and little beside Q for packed sequences of any lengths.
TEST(CudaBackwardWorkspace, GrowsWithTheRows) {
  const auto bytes = [](std::int64_t seq) {
    Problem p = problem_of(128, 128, true);
    p.seq_q = p.seq_kv = seq;
    return backward_workspace(p, backward_config(p, Options{})).bytes;
  };
  EXPECT_NEAR(static_cast<double>(bytes(1 << 16)), 2.0 * static_cast<double>(bytes(1 << 15)), 4096);

  Problem packed = problem_of(128, 128, true);
  packed.batch = 1000;
  packed.seq_q = packed.seq_kv = 1 << 20;  // one long sequence, many tiny ones
  packed.varlen.cu_seqlens_q = packed.varlen.cu_seqlens_kv = true;
  packed.varlen.total_q = packed.varlen.total_kv = (1 << 20) + 999;
  const auto w = backward_workspace(packed, backward_config(packed, Options{}));
  EXPECT_LT(w.tiles, (1 << 20) / 64 + 2 * packed.batch);
}

TEST(CudaBackwardTable, RefusesMoreKeyTilesThanItCounts) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = 1 << 14, p.heads_q = p.heads_kv = 16;
  p.seq_q = 64, p.seq_kv = 1 << 20;
  p.head_dim = p.head_dim_v = 256;
  EXPECT_NE(why_not_backward(p).find("2^30 tiles"), std::string::npos);
  EXPECT_EQ(why_not_forward(p), "");
}

TEST(CudaBackwardPlan, SaysWhatItRunsAndNeeds) {
  const auto plan = make_plan(problem_of(64, 64, true), {Device::Kind::kCuda, 0});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->backward.kernel, "fa3");
  EXPECT_EQ(plan->backward.tile_kv, 128);
  EXPECT_GT(plan->backward.workspace_bytes, std::size_t{2 * 2 * 256 * 64 * 4});
}

}  // namespace
}  // namespace tilewise::cuda
