// The CUDA backend without a GPU: a driver that only takes notes stands in for libcuda.so.1, and a
// bundle of make-believe kernels for NVRTC. What a call checks, prepares, remembers and launches,
// on several devices, contexts and threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "cuda/device/sm90/forward_params.h"
#include "cuda/runtime/cubin_store.h"
#include "cuda/table.h"
#include "fake_cuda/fake_cuda.h"
#include "support/scratch_folder.h"
#include "tilewise/attention.hpp"

namespace tilewise::test {
namespace {

using sm90::ForwardParams;

constexpr std::int64_t kSeq = 96, kHeads = 4, kDim = 64;

Problem problem_of(bool causal = false) {
  Problem p;
  p.dtype = DType::kBF16;
  p.batch = 2;
  p.heads_q = p.heads_kv = kHeads;
  p.seq_q = p.seq_kv = kSeq;
  p.head_dim = p.head_dim_v = kDim;
  p.mask.causal = causal;
  p.dropout_p = 0.5f;
  return p;
}

// A bundle of kernels for both masks, found through the variable. Never freed: the store of this
// process reads from it until the end.
void use_bundle(const std::string& compiler = "13.0") {
  static const ScratchFolder folder;
  std::vector<cuda::BundleEntry> entries;
  for (const bool causal : {false, true}) {
    const std::string source =
        cuda::kernel_source(cuda::forward_config(problem_of(causal), Options{}));
    entries.push_back({cuda::cubin_key(source, "sm_90a"), "sm_90a", {"cubin", compiler}});
  }
  const std::string path =
      folder.write("kernels", cuda::bundle_bytes(cuda::headers_digest(), entries));
  setenv("TILEWISE_BUNDLE", path.c_str(), 1);
}

// One call's tensors in memory that the fake driver takes for a device's.
struct Call {
  explicit Call(int device = 0, bool causal = false)
      : memory(4 * kBytes + 64), plan(*make_plan(problem_of(causal), on(device))) {
    fake_device_memory(memory.data(), memory.size(), device);
    char* at = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
    for (Tensor* t : {&in.q, &in.k, &in.v, &out.o}) {
      *t = make_tensor(at, DType::kBF16, 2, kSeq, kHeads, kDim);
      t->device = on(device);
      at += kBytes;
    }
  }
  ~Call() { fake_device_memory(memory.data(), 0, 0); }
  Call(const Call&) = delete;

  static Device on(int device) { return {Device::Kind::kCuda, device}; }
  Status run() { return forward(plan, in, out, {nullptr, 0, this}); }  // any address is a stream

  static constexpr std::size_t kBytes = 2 * kSeq * kHeads * kDim * 2;
  std::vector<char> memory;
  Plan plan;
  Inputs in;
  Outputs out;
};

FakeCuda& fresh_fake() {
  use_bundle();
  fake_cuda().parameter_bytes = sizeof(ForwardParams);
  fake_cuda().launches.clear();
  return fake_cuda();
}

ForwardParams parameters_of(const FakeLaunch& launch) {
  ForwardParams p;
  std::memcpy(&p, launch.parameters.data(), sizeof p);
  return p;
}

TEST(FakeGpu, LaunchesWhatTheProblemAsks) {
  FakeCuda& fake = fresh_fake();
  Call call;
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_EQ(fake.launches.size(), 1u);
  const FakeLaunch& launch = fake.launches[0];
  EXPECT_EQ(launch.stream, &call);
  const ForwardParams p = parameters_of(launch);
  EXPECT_EQ(p.o, call.out.o.data);
  EXPECT_EQ(p.lse, nullptr);
  EXPECT_EQ(p.seq_q, kSeq);
  EXPECT_EQ(p.heads_q * p.batch, 2 * kHeads);
  EXPECT_LE(launch.grid, 132u);
}

TEST(FakeGpu, NoHeadsIsNoWork) {
  const FakeCuda& fake = fresh_fake();
  Problem problem = problem_of();
  problem.heads_q = problem.heads_kv = 0;
  const Plan plan = *make_plan(problem, Call::on(0));
  const Status s = forward(plan, {}, {});
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_TRUE(fake.launches.empty());
}

TEST(FakeGpu, TensorsSeenBeforeCostNoChecks) {
  FakeCuda& fake = fresh_fake();
  Call call, other;
  ASSERT_TRUE(call.run().ok());
  const int queries = fake.pointer_queries, maps = fake.tensor_maps, loads = fake.module_loads;
  call.in.dropout_seed = 77;
  ASSERT_TRUE(call.run().ok());
  EXPECT_EQ(fake.pointer_queries, queries);
  EXPECT_EQ(fake.tensor_maps, maps);
  const ForwardParams first = parameters_of(fake.launches[0]);
  const ForwardParams second = parameters_of(fake.launches[1]);
  EXPECT_NE(std::memcmp(&first.dropout_key, &second.dropout_key, sizeof first.dropout_key), 0);
  // Other tensors, other strides or another scale are not seen before.
  ASSERT_TRUE(other.run().ok());
  EXPECT_EQ(parameters_of(fake.launches[2]).o, other.out.o.data);
  call.plan.problem.scale = 0.5f;
  ASSERT_TRUE(call.run().ok());
  EXPECT_NE(parameters_of(fake.launches[3]).scale_log2, first.scale_log2);
  EXPECT_GT(fake.tensor_maps, maps);
  EXPECT_EQ(fake.module_loads, loads);
}

TEST(FakeGpu, BadMemoryIsNamed) {
  fresh_fake();
  Call call, on_other(1);
  std::vector<char> host(Call::kBytes + 64);
  const Tensor good = call.in.k;
  call.in.k.data = host.data() + (64 - reinterpret_cast<std::uintptr_t>(host.data()) % 64);
  EXPECT_EQ(call.run().message(), "k points to host memory; accepted: memory of cuda:0");
  call.in.k.data = on_other.in.k.data;
  EXPECT_EQ(call.run().message(), "k points to memory of cuda:1; accepted: memory of cuda:0");
  call.in.k = good;
  call.in.k.data = static_cast<char*>(good.data) + 2;
  EXPECT_NE(call.run().message().find("k can't be addressed by the GPU kernel"), std::string::npos);
  call.in.k = good;
  call.in.k.device = {};
  EXPECT_NE(call.run().message().find("k is not on the plan's device"), std::string::npos);
  EXPECT_TRUE(fake_cuda().launches.empty());
}

TEST(FakeGpu, CallersContextIsUsedAndEachHasItsKernels) {
  FakeCuda& fake = fresh_fake();
  Call call;
  fake_make_current(nullptr);
  ASSERT_TRUE(call.run().ok());
  EXPECT_GT(fake.pushes, 0);
  const int loads = fake.module_loads, pushes = fake.pushes;
  fake_make_current(fake_context(0));
  ASSERT_TRUE(call.run().ok());
  ASSERT_TRUE(call.run().ok());
  EXPECT_EQ(fake.module_loads, loads + 1);
  EXPECT_EQ(fake.pushes, pushes);
  EXPECT_NE(fake.launches[0].function, fake.launches[1].function);
  EXPECT_EQ(fake.launches[1].function, fake.launches[2].function);
  // A context of another device is no use: the plan's own is pushed.
  fake_make_current(fake_context(1));
  ASSERT_TRUE(call.run().ok());
  EXPECT_EQ(fake.launches[3].function, fake.launches[0].function);
  EXPECT_GT(fake.pushes, pushes);
  fake_make_current(nullptr);
}

TEST(FakeGpu, LoadsWhileAStreamIsCaptured) {
  FakeCuda& fake = fresh_fake();
  fake_make_current(fake_context(0));
  Call call;
  ASSERT_TRUE(call.run().ok());
  EXPECT_GT(fake.module_loads, 0);
  EXPECT_EQ(fake.strict_module_loads, 0);
  fake_make_current(nullptr);
}

TEST(FakeGpu, KernelErrorNamesItsProblem) {
  FakeCuda& fake = fresh_fake();
  Call call, causal(0, true);
  ASSERT_TRUE(call.run().ok());
  fake.launch_result = 700;
  const Status s = causal.run();
  fake.launch_result = 0;
  EXPECT_EQ(s.code(), StatusCode::kInternal);
  EXPECT_EQ(
      s.message(),
      "launching a kernel failed: an illegal memory access was encountered (CUDA error 700); "
      "in attention bf16: batch 2, heads 4 over 4, Sq 96, Sk 96, D 64, Dv 64; causal, aligned "
      "bottom-right with dropout 0.5; launched before: attention bf16: batch 2, heads 4 over "
      "4, Sq 96, Sk 96, D 64, Dv 64; every key visible with dropout 0.5");
}

TEST(FakeGpuThreads, DevicesAndThreadsShareWhatIsLoaded) {
  FakeCuda& fake = fresh_fake();
  const int loads = fake.module_loads;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([t] {
      Call full(t % 2), causal(t % 2, true);
      for (int i = 0; i < 50; ++i) {
        const Status s = (i % 2 ? full : causal).run();
        ASSERT_TRUE(s.ok()) << s.message();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(fake.launches.size(), 400u);
  EXPECT_LE(fake.module_loads - loads, 4);  // two kernels on two devices
}

// What the library asks a driver once is asked by a process of its own. `check` fails by exiting.
#define IN_A_PROCESS_OF_ITS_OWN(...)                    \
  EXPECT_EXIT(                                          \
      {                                                 \
        __VA_ARGS__;                                    \
        std::exit(testing::Test::HasFailure() ? 1 : 0); \
      },                                                \
      testing::ExitedWithCode(0), "")

void expect_unavailable(const std::string& words) {
  use_bundle();
  Call call;
  const Status s = call.run();
  EXPECT_EQ(s.code(), StatusCode::kUnavailable);
  EXPECT_EQ(s.message(), words);
}

TEST(FakeGpuDeath, MachinesThatCanNotRunIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  IN_A_PROCESS_OF_ITS_OWN(fake_cuda().driver_version = 11080; expect_unavailable(
                              "the CUDA driver supports CUDA 11.8; accepted: 12.0 or newer"));
  IN_A_PROCESS_OF_ITS_OWN(
      fake_cuda().init_result = 100;
      expect_unavailable("the CUDA driver's start failed: no CUDA-capable device is detected (CUDA "
                         "error 100)"));
  IN_A_PROCESS_OF_ITS_OWN(fake_cuda().devices.clear(); expect_unavailable(
                              "device is cuda:0; accepted: the 0 CUDA devices of this machine"));
  IN_A_PROCESS_OF_ITS_OWN(
      fake_cuda().devices[0].major = 8;
      expect_unavailable("cuda:0 is Fake GPU (compute capability 8.0); accepted: 9.0 (Hopper)"));
}

TEST(FakeGpuDeath, DriverOlderThanTheKernels) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  IN_A_PROCESS_OF_ITS_OWN({
    setenv("TILEWISE_NVRTC", "/nowhere/libnvrtc.so", 1);
    setenv("TILEWISE_CACHE", "/nowhere", 1);
    use_bundle("14.1");
    fake_cuda().driver_version = 12040;
    Call call;
    const Status s = call.run();
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_NE(s.message().find("of CUDA 14.1 is newer than the driver, which supports up to CUDA "
                               "12.4"),
              std::string::npos)
        << s.message();
  });
}

}  // namespace
}  // namespace tilewise::test
