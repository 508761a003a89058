// Every row of the CUDA table compiles to machine code that keeps its promises: no spills, and
// matrix products on the tensor cores. Needs NVRTC, no GPU; skipped where NVRTC is not to be had.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/table.h"
#include "support/cubin_report.h"

namespace tilewise::cuda {
namespace {

using test::why_no_compiler;

Problem problem_for(const ForwardRow& row) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_kv = std::max(row.min_seq_kv, 4 * row.tile_q);
  p.head_dim = p.head_dim_v = row.max_head_dim;
  p.mask.causal = row.band != sm90::Band::kFull;
  if (row.band == sm90::Band::kBoth) p.mask.left = 100;
  if (row.extras == Extras::kAlibi) p.alibi = Alibi::kPerHead;
  if (row.extras == Extras::kRegisters) p.softcap = 30;
  return p;
}

void expect_sound(const Problem& p) {
  const sm90::ForwardConfig config = forward_config(p, Options{});
  ASSERT_EQ(why_not(config), nullptr) << config_text(config);
  const int steps = config.head_dim / 16 + config.tile_kv / 16;
  test::expect_sound_kernel(kernel_source(config),
                            {config_text(config), config.threads(), 2 * steps});
}

class CudaKernels : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(CudaKernels, RowCompilesWithoutSpills) {
  const ForwardRow& row = forward_table()[GetParam()];
  Problem p = problem_for(row);
  EXPECT_EQ(config_text(forward_config(p, Options{})), config_text(forward_config(p, row)))
      << "another row comes first";
  expect_sound(p);
  if (row.extras == Extras::kNone) return;
  Problem plain = p;
  plain.alibi = Alibi::kNone, plain.softcap = 0;
  expect_sound(plain);
  if (row.extras != Extras::kRegisters) return;
  p.alibi = Alibi::kPerHead;
  p.sink = true;
  expect_sound(p);
  Problem half = p;
  half.dtype = DType::kF16;
  Problem biased = p, strided = p;
  p.dropout_p = 0.1f;
  biased.bias = strided.bias = {true, true, false, false, false, DType::kF32};
  --strided.seq_kv;  // no pairs of keys
  Problem negative = half;
  negative.softcap = 0, negative.scale = -1;
  for (const Problem& extra : {p, biased, strided, half, negative}) expect_sound(extra);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaKernels, testing::Range(std::size_t{0}, forward_table().size()));

TEST(CudaKernelFeatures, EachCompilesWithoutSpills) {
  if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  Problem base;
  base.dtype = DType::kF16;
  base.batch = base.heads_q = base.heads_kv = 1;
  base.seq_q = base.seq_kv = 256;
  base.head_dim = base.head_dim_v = 128;
  Problem bias = base, dropout = base, packed = base, narrow = base, scale = base;
  bias.bias = {true, true, false, false, false, DType::kBF16};
  dropout.dropout_p = 0.1f;
  packed.varlen.cu_seqlens_q = packed.varlen.cu_seqlens_kv = true;
  packed.mask.causal = true;
  narrow.head_dim = 72, narrow.head_dim_v = 40;
  scale.scale = -1.0f;
  Problem grouped = base;
  grouped.heads_q = 3, grouped.seq_q = 5;
  ASSERT_EQ(forward_config(grouped, Options{}).packed_heads, 3);
  Problem softcap = base, alibi = base, both = packed;
  softcap.softcap = both.softcap = 30;
  alibi.alibi = both.alibi = Alibi::kPerHead;
  for (const Problem& p : {bias, dropout, packed, narrow, scale, grouped, softcap, alibi, both})
    expect_sound(p);
}

TEST(CudaTable, SaysWhatItCanNotDo) {
  Problem p;
  p.head_dim = p.head_dim_v = 64;
  EXPECT_NE(why_not_forward(p).find("f16 or bf16"), std::string::npos);
  p.dtype = DType::kBF16;
  EXPECT_EQ(why_not_forward(p), "");
  p.head_dim = 60;
  EXPECT_NE(why_not_forward(p).find("multiples of 8"), std::string::npos);
}

}  // namespace
}  // namespace tilewise::cuda
