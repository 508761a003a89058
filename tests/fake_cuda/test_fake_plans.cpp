// The plans of a fixed set of CUDA problems, word by word, with the keys of the kernels that they
// take: what a change to a table does to whom shows in tests/golden/cuda_plans.txt. `./dev docs`
// runs this with TILEWISE_WRITE_DOCS set, which writes that file instead of comparing it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cuda/backward_table.h"
#include "cuda/table.h"
#include "tilewise/attention.hpp"

namespace tilewise::test {
namespace {

const std::string kGolden = TILEWISE_SOURCE_DIR "/tests/golden/cuda_plans.txt";

// What makes a problem differ from 4 sequences of 4096 bf16 tokens with 16 heads of 128.
struct Case {
  const char* name;
  void (*change)(Problem& p);
  Options options = {};
};

void heads(Problem& p, std::int64_t d, std::int64_t dv) {
  p.head_dim = d;
  p.head_dim_v = dv;
}
void lengths(Problem& p, std::int64_t q, std::int64_t kv) {
  p.seq_q = q;
  p.seq_kv = kv;
}
void grouped(Problem& p, std::int64_t q, std::int64_t kv) {
  p.heads_q = q;
  p.heads_kv = kv;
}
void packed(Problem& p) {
  p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_kv = true;
  p.varlen.total_q = p.varlen.total_kv = 10000;
}

Options asked(const char* kernel, bool deterministic, std::int64_t tile_q) {
  Options o;
  o.kernel = kernel;
  o.deterministic = deterministic;
  o.tile_q = tile_q;
  return o;
}

// clang-format off
const Case kCases[] = {
    {"D 64", [](Problem& p) { heads(p, 64, 64); }},
    {"D 64, causal", [](Problem& p) { heads(p, 64, 64); p.mask.causal = true; }},
    {"D 64, causal, short", [](Problem& p) { heads(p, 64, 64); lengths(p, 512, 512); p.mask.causal = true; }},
    {"D 64, window", [](Problem& p) { heads(p, 64, 64); p.mask.causal = true; p.mask.left = 1024; }},
    {"D 96", [](Problem& p) { heads(p, 96, 96); }},
    {"D 128", [](Problem&) {}},
    {"D 128, short", [](Problem& p) { lengths(p, 512, 512); }},
    {"D 128, causal", [](Problem& p) { p.mask.causal = true; }},
    {"D 128, causal, short", [](Problem& p) { lengths(p, 512, 512); p.mask.causal = true; }},
    {"D 128, causal, top-left", [](Problem& p) { lengths(p, 300, 1000); p.mask.causal = true; p.mask.align = Align::kTopLeft; }},
    {"D 128, window on both sides", [](Problem& p) { p.mask.left = 100; p.mask.right = 50; }},
    {"D 192", [](Problem& p) { heads(p, 192, 192); }},
    {"D 192, Dv 128, causal", [](Problem& p) { heads(p, 192, 128); p.mask.causal = true; }},
    {"D 256", [](Problem& p) { heads(p, 256, 256); }},
    {"D 256, causal", [](Problem& p) { heads(p, 256, 256); p.mask.causal = true; }},
    {"D 72, Dv 40", [](Problem& p) { heads(p, 72, 40); }},
    {"f16", [](Problem& p) { p.dtype = DType::kF16; }},
    {"scale", [](Problem& p) { p.scale = -0.5f; }},
    {"softcap", [](Problem& p) { p.softcap = 30; }},
    {"ALiBi, causal", [](Problem& p) { p.alibi = Alibi::kPerHead; p.mask.causal = true; }},
    {"dense bias", [](Problem& p) { p.bias.present = true; }},
    {"bf16 bias of a row, odd length", [](Problem& p) { lengths(p, 333, 333); p.bias = {true, true, true, true, false, DType::kBF16}; }},
    {"sink, dropout", [](Problem& p) { p.sink = true; p.dropout_p = 0.1f; }},
    {"all of it, D 256", [](Problem& p) { heads(p, 256, 256); p.softcap = 30; p.alibi = Alibi::kPerBatchAndHead; p.bias.present = p.sink = true; p.dropout_p = 0.1f; }},
    {"heads 32 over 8, causal", [](Problem& p) { grouped(p, 32, 8); p.mask.causal = true; }},
    {"heads 64 over 8, 4 queries", [](Problem& p) { grouped(p, 64, 8); lengths(p, 4, 4096); }},
    {"heads 12 over 1, 1 query", [](Problem& p) { grouped(p, 12, 1); lengths(p, 1, 4096); p.mask.causal = true; }},
    {"packed sequences, causal", [](Problem& p) { packed(p); p.mask.causal = true; }},
    {"packed sequences, seqused, D 64, few queries", [](Problem& p) { packed(p); heads(p, 64, 64); grouped(p, 16, 2); p.varlen.seqused_kv = true; p.seq_q = 8; }},
    {"deterministic, causal", [](Problem& p) { p.mask.causal = true; }, asked("auto", true, 0)},
    {"no queries", [](Problem& p) { lengths(p, 0, 4096); }},
    {"no keys", [](Problem& p) { lengths(p, 4096, 0); }},
    {"f32", [](Problem& p) { p.dtype = DType::kF32; }},
    {"f32 output", [](Problem& p) { p.out_dtype = DType::kF32; }},
    {"D 60", [](Problem& p) { heads(p, 60, 60); }},
    {"D 320", [](Problem& p) { heads(p, 320, 320); }},
    {"kernel fa2", [](Problem&) {}, asked("fa2", false, 0)},
    {"tile_q 64", [](Problem&) {}, asked("auto", false, 64)},
};
// clang-format on

Problem problem_of(const Case& c) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = 4;
  grouped(p, 16, 16);
  lengths(p, 4096, 4096);
  heads(p, 128, 128);
  c.change(p);
  return p;
}

std::string words(const Case& c) {
  const Problem p = problem_of(c);
  const auto plan = make_plan(p, {Device::Kind::kCuda, 0}, c.options);
  std::string out = fmt::format("# {}\n", c.name);
  if (!plan.ok()) return out + fmt::format("refused: {}\n\n", plan.status().message());
  out += plan->describe();
  out += fmt::format("forward key: {}\n", cuda::config_text(cuda::forward_config(p, c.options)));
  if (!plan->backward.kernel.empty())
    out +=
        fmt::format("backward key: {}\n", cuda::config_text(cuda::backward_config(p, c.options)));
  return out + "\n";
}

TEST(CudaPlans, AreTheGoldenText) {
  std::string all;
  for (const Case& c : kCases) all += words(c);
  if (std::getenv("TILEWISE_WRITE_DOCS")) {
    ASSERT_TRUE(std::ofstream(kGolden) << all) << kGolden;
    return;
  }
  std::ifstream in(kGolden);
  std::ostringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(golden.str(), all) << "if that is what was meant: ./dev docs";
}

}  // namespace
}  // namespace tilewise::test
