// The CUDA backward without a GPU: what a call checks and launches. Kernels are compiled, so NVRTC
// must be there; the driver only takes notes.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/device/sm90/backward_params.h"
#include "fake_cuda/fake_cuda.h"
#include "support/cubin_report.h"
#include "tilewise/attention.hpp"

namespace tilewise::test {
namespace {

using sm90::BackwardParams;

constexpr std::int64_t kSeq = 200, kHeads = 4, kDim = 64;
constexpr Device kGpu{Device::Kind::kCuda, 0};

struct BackwardCall {
  explicit BackwardCall(bool causal = false, bool with_bias = false, std::int64_t seq_q = kSeq,
                        std::int64_t seq_kv = kSeq)
      : memory(std::size_t{1} << 24), next(memory.data()) {
    fake_device_memory(memory.data(), memory.size(), 0);
    fake_cuda().parameter_bytes = sizeof(BackwardParams);
    fake_cuda().launches.clear();
    Problem p;
    p.dtype = DType::kBF16;
    p.batch = 2;
    p.heads_q = p.heads_kv = kHeads;
    p.seq_q = seq_q;
    p.seq_kv = seq_kv;
    p.head_dim = p.head_dim_v = kDim;
    p.mask.causal = causal;
    p.bias = {with_bias, true, false, false, false, DType::kF32};
    plan = *make_plan(p, kGpu);
    for (Tensor* t : {&in.q, &grads.o, &grads.d_o, &grads.dq})
      *t = on_gpu(DType::kBF16, 2, seq_q, kHeads, kDim);
    for (Tensor* t : {&in.k, &in.v, &grads.dk, &grads.dv})
      *t = on_gpu(DType::kBF16, 2, seq_kv, kHeads, kDim);
    grads.lse = on_gpu(DType::kF32, 2, kHeads, seq_q);
    if (with_bias) {
      in.bias = on_gpu(DType::kF32, 1, kHeads, kSeq, kSeq);
      grads.dbias = on_gpu(DType::kF32, 1, kHeads, kSeq, kSeq);
    }
  }
  ~BackwardCall() { fake_device_memory(memory.data(), 0, 0); }
  BackwardCall(const BackwardCall&) = delete;

  template <class... Extent>
  Tensor on_gpu(DType dtype, Extent... shape) {
    Tensor t = make_tensor(aligned(), dtype, shape...);
    t.device = kGpu;
    next += t.elements() * size_of(dtype);
    return t;
  }
  char* aligned() {
    next += (256 - reinterpret_cast<std::uintptr_t>(next) % 256) % 256;
    return next;
  }
  Status run() {
    return backward(plan, in, grads, {aligned(), plan.backward.workspace_bytes, this});
  }

  std::vector<char> memory;
  char* next;
  Plan plan;
  Inputs in;
  Gradients grads;
};

BackwardParams parameters_of(const FakeLaunch& launch) {
  BackwardParams p;
  std::memcpy(&p, launch.parameters.data(), sizeof p);
  return p;
}

class FakeBackward : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(FakeBackward, LaunchesFourKernels) {
  BackwardCall call(true);
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  const auto& launches = fake_cuda().launches;
  ASSERT_EQ(launches.size(), 4u);
  for (const FakeLaunch& launch : launches) EXPECT_EQ(launch.stream, &call);
  EXPECT_EQ(launches[0].grid, 2 * 2 * kHeads);  // query tiles of 128
  EXPECT_EQ(launches[1].grid, launches[0].grid);
  EXPECT_EQ(launches[2].grid, 2 * 2 * kHeads);  // key tiles of 128
  EXPECT_EQ(launches[3].grid, launches[0].grid);
  const BackwardParams p = parameters_of(launches[2]);
  EXPECT_EQ(p.dq.data, call.grads.dq.data);
  EXPECT_EQ(p.d_lse.data, nullptr);
  EXPECT_EQ(p.work_items, 2 * 2 * kHeads);
  EXPECT_GE(reinterpret_cast<char*>(p.dq_sum), call.aligned());
  EXPECT_LE(reinterpret_cast<char*>(p.items_taken + 1),
            call.aligned() + call.plan.backward.workspace_bytes);
}

TEST_F(FakeBackward, GradientOfTheBiasIsAFifth) {
  BackwardCall call(false, true);
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_EQ(fake_cuda().launches.size(), 5u);
  EXPECT_EQ(fake_cuda().launches[4].grid, kHeads * 4 * 4);  // tiles of 64 x 64, batches summed
  const BackwardParams p = parameters_of(fake_cuda().launches[4]);
  EXPECT_TRUE(p.dbias.sums_batch);
  EXPECT_FALSE(p.dbias.sums_q);
  call.grads.dbias = {};
  fake_cuda().launches.clear();
  ASSERT_TRUE(call.run().ok());
  EXPECT_EQ(fake_cuda().launches.size(), 4u);
}

TEST_F(FakeBackward, WithoutQueriesOnlyTheKeysGradientsAreWritten) {
  BackwardCall call(true, false, 0);
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_EQ(fake_cuda().launches.size(), 1u);
  EXPECT_EQ(fake_cuda().launches[0].grid, 2 * 2 * kHeads);
  EXPECT_EQ(parameters_of(fake_cuda().launches[0]).dk.data, call.grads.dk.data);
}

TEST_F(FakeBackward, NoHeadsIsNoWork) {
  Problem p = BackwardCall().plan.problem;
  p.heads_q = p.heads_kv = 0;
  fake_cuda().launches.clear();
  const Plan plan = *make_plan(p, kGpu);
  std::vector<char> workspace(plan.backward.workspace_bytes + 64);
  const auto at = reinterpret_cast<std::uintptr_t>(workspace.data());
  char* const aligned = workspace.data() + (64 - at % 64);
  fake_device_memory(aligned, plan.backward.workspace_bytes, 0);
  const Status s = backward(plan, {}, {}, {aligned, plan.backward.workspace_bytes, nullptr});
  fake_device_memory(aligned, 0, 0);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_TRUE(fake_cuda().launches.empty());
}

TEST_F(FakeBackward, TensorsWithoutKeysMayBeNull) {
  BackwardCall call(false, false, kSeq, 0);
  call.in.k = call.in.v = call.grads.dk = call.grads.dv = Tensor{};
  const Status s = call.run();
  EXPECT_TRUE(s.ok()) << s.message();
  const Status forward_too =
      forward(call.plan, call.in, {call.grads.o, {}}, {call.aligned(), 0, &call});
  EXPECT_TRUE(forward_too.ok()) << forward_too.message();
}

TEST_F(FakeBackward, BadMemoryIsNamed) {
  BackwardCall call;
  std::vector<char> host(call.plan.backward.workspace_bytes + 64);
  const auto at = reinterpret_cast<std::uintptr_t>(host.data());
  const Status s = backward(call.plan, call.in, call.grads,
                            {host.data() + (64 - at % 64), call.plan.backward.workspace_bytes, {}});
  EXPECT_EQ(s.message(), "launch.workspace points to host memory; accepted: memory of cuda:0");
  Tensor& d_o = call.grads.d_o;
  d_o = call.on_gpu(DType::kBF16, 3, kSeq, kHeads, kDim);
  d_o.shape[0] = 2;
  d_o.strides[1] += 1;
  const std::string message = call.run().message();
  EXPECT_NE(message.find("d_o can't be addressed"), std::string::npos) << message;
}

}  // namespace
}  // namespace tilewise::test
