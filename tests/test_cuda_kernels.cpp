// Every row of the CUDA table compiles to machine code that keeps its promises: no spills, and
// matrix products on the tensor cores. Needs NVRTC, no GPU; skipped where NVRTC is not to be had.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <regex>

#include "cuda/runtime/nvrtc.h"
#include "cuda/table.h"

namespace tilewise::cuda {
namespace {

// Why nothing can be compiled here; empty if it can.
std::string why_no_compiler() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "NVRTC knows nothing of sanitizers";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return "NVRTC knows nothing of sanitizers";
#endif
#endif
  const auto version = nvrtc_version();
  return version.ok() ? "" : version.status().message();
}

Problem problem_for(const ForwardRow& row) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_kv = std::max(row.min_seq_kv, 256);
  p.head_dim = p.head_dim_v = row.max_head_dim;
  p.mask.causal = row.band != sm90::Band::kFull;
  if (row.band == sm90::Band::kBoth) p.mask.left = 100;
  return p;
}

// Instructions of 16 bytes whose opcode, the low 12 bits, is HGMMA's, with A in shared memory or in
// registers.
int tensor_core_instructions(const std::string& cubin) {
  constexpr std::uint64_t kShared = 0x9F0, kRegisters = 0xDF0;
  int count = 0;
  for (std::size_t at = 0; at + 16 <= cubin.size(); at += 16) {
    std::uint64_t word;
    std::memcpy(&word, cubin.data() + at, sizeof word);
    count += (word & 0xFFF) == kShared || (word & 0xFFF) == kRegisters;
  }
  return count;
}

void expect_sound(const Problem& p) {
  const sm90::ForwardConfig config = forward_config(p, Options{});
  ASSERT_EQ(why_not(config), nullptr) << config_text(config);
  const auto compiled = nvrtc_compile(kernel_source(config), "sm_90a");
  ASSERT_TRUE(compiled.ok()) << config_text(config) << "\n" << compiled.status().message();
  const std::string& log = compiled->log;
  std::smatch spills;
  ASSERT_TRUE(std::regex_search(log, spills, std::regex("(\\d+) bytes spill stores"))) << log;
  EXPECT_EQ(spills[1], "0") << config_text(config) << "\n" << log;
  // The entry's budget is what the CTA can have at once; setmaxnreg shifts it between roles.
  std::smatch registers;
  ASSERT_TRUE(std::regex_search(log, registers, std::regex("Used (\\d+) registers"))) << log;
  EXPECT_LE(std::stoi(registers[1]), 65536 / config.threads() / 8 * 8);
  EXPECT_EQ(log.find("C75"), std::string::npos) << "serialized or ignored: " << log;
  const int steps = config.head_dim / 16 + config.tile_kv / 16;
  EXPECT_GE(tensor_core_instructions(compiled->cubin), 2 * steps) << config_text(config);
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
  if (row.plain) return expect_sound(p);
  p.softcap = 30;
  p.alibi = Alibi::kPerHead;
  p.sink = true;
  expect_sound(p);
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
  for (const Problem& p : {bias, dropout, packed, narrow, scale}) expect_sound(p);
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
