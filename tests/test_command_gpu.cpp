// The command's GPU side where there is no GPU: bundles are made, and what needs a device says so.
#ifdef TILEWISE_COMMAND
#include <fmt/format.h>

#include "cuda/catalog.h"
#include "cuda/runtime/cubin_store.h"
#include "cuda/runtime/driver.h"
#include "support/command_fixture.h"

namespace tilewise::test {
namespace {

TEST_F(Command, WithoutAGpuOnlyTheGpuIsMissing) {
  if (cuda::device_count().ok()) GTEST_SKIP() << "this machine has one";
  const std::vector<Words> calls = {
      Words{"attend", "--q", "q.npy", "--k", "k.npy", "--v", "k.npy"} +
          Words{"--dtype", "bf16", "--device", "cuda", "--out", "o.npy", "--causal"},
      {"check", "--seq-q", "64", "--dtype", "bf16", "--device", "cuda:1"},
      {"bench", "--s", "64", "--dtype", "bf16", "--device", "cuda"}};
  for (const Words& call : calls) {
    const Said said = run(call);
    EXPECT_EQ(said.exit_code, 2) << call[0];
    EXPECT_NE(said.err.find("CUDA driver"), std::string::npos) << call[0] << ": " << said.err;
  }
  EXPECT_EQ(run(Words{"attend"} + qkv_ + Words{"--out", "o.npy"}).exit_code, 0);
  EXPECT_NE(run({"info"}).out.find("GPU      none: the CUDA driver"), std::string::npos);
}

TEST_F(Command, CompileRefusesWhatItCanNotDo) {
  const std::pair<Words, std::string> wrong[] = {
      {{"--arch", "sm_80", "--out", "k"}, "--arch is sm_80; accepted: sm_90a"},
      {{"--rows", "d64 purple", "--out", "k"}, "--rows d64 purple matches no kernel"},
      {{"--rows", "d64"}, "--out is missing"},
      {{"--rows", "d64", "--out", "no/such/k"}, "no/such/k: can't be written"},
      {{"--seq-q", "64", "--out", "k"}, "needs f16 or bf16 inputs"}};
  for (const auto& [words, message] : wrong) {
    const Said said = run(Words{"compile"} + words);
    EXPECT_EQ(said.exit_code, 2) << message;
    EXPECT_NE(said.err.find(message), std::string::npos) << said.err;
  }
}

TEST_F(Command, CompileListsEveryRowOnce) {
  const Said said = run({"compile", "--list"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  std::string names;
  for (const cuda::KernelSource& kernel : cuda::usual_kernels()) names += kernel.name + "\n";
  EXPECT_EQ(said.out, names);
  const Said some = run({"compile", "--list", "--rows", "d128 bf16 causal,d64 softcap f16 full"});
  EXPECT_NE(some.out.find("forward d64 f16 full softcap"), std::string::npos) << some.out;
  EXPECT_EQ(some.out.find(" f16 causal"), std::string::npos) << some.out;
}

TEST_F(Command, CompileMakesABundleThatIsFound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "NVRTC knows nothing of sanitizers";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "NVRTC knows nothing of sanitizers";
#endif
#endif
  if (!cuda::nvrtc_version().ok()) GTEST_SKIP() << "no NVRTC";
  Problem p;
  p.dtype = DType::kBF16;
  p.seq_q = p.seq_kv = 64;
  p.head_dim = p.head_dim_v = 16;
  const auto kernels = cuda::kernels_of(p, {});
  ASSERT_EQ(kernels.size(), 5u);  // forward; prepare, replay, main and finish of the backward
  const Said said = run({"compile", "--seq-q", "64", "--head-dim", "16", "--dtype", "bf16",
                         "--threads", "1", "-o", "k.bundle"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_NE(said.out.find("k.bundle  5 kernels for sm_90a"), std::string::npos) << said.out;
  const auto bundle = cuda::Bundle::open(folder_ / "k.bundle", cuda::headers_digest());
  ASSERT_TRUE(bundle.ok()) << bundle.status().message();
  const auto cubin = bundle->find(cuda::cubin_key(kernels[1].source, "sm_90a"));
  ASSERT_TRUE(cubin.ok()) << cubin.status().message();
  EXPECT_EQ(cubin->code.substr(1, 3), "ELF");
}

}  // namespace
}  // namespace tilewise::test
#endif  // TILEWISE_COMMAND
