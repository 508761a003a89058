// How the command brings host tensors to a GPU and back: tensors that share memory, gaps, guards.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "fake_cuda/fake_cuda.h"
#include "tools/gpu_run.h"

namespace tilewise::tools {
namespace {

// dq, dk, dv as slices of one row of 3 x 8 numbers, and q with a gap behind every row.
struct Host {
  Host() : fused(4 * 24), q(4 * 11) {
    std::iota(fused.begin(), fused.end(), 0.0f);
    std::iota(q.begin(), q.end(), 1000.0f);
    Tensor* const slices[] = {&grads.dq, &grads.dk, &grads.dv};
    for (int i = 0; i < 3; ++i) *slices[i] = slice(fused.data() + 8 * i, 24);
    in.q = slice(q.data(), 11);
  }
  static Tensor slice(float* at, std::int64_t stride) {
    Tensor t = make_tensor(at, DType::kF32, 1, 4, 1, 8);
    t.strides = {0, stride, 8, 1};
    return t;
  }
  std::vector<float> fused, q;
  Inputs in;
  Outputs out;
  Gradients grads;
};

float* on_device(const Tensor& t, std::int64_t row) {
  return static_cast<float*>(t.data) + row * t.strides[1];
}

TEST(GpuRun, SharedAndStridedTensorsComeAndGo) {
  Host host;
  const auto copy = DeviceCopy::make(0, host.in, host.out, host.grads);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  const Gradients& g = copy->grads();
  EXPECT_EQ(g.dq.device.kind, Device::Kind::kCuda);
  EXPECT_EQ(static_cast<char*>(g.dk.data) - static_cast<char*>(g.dq.data), 32);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copy->in().q.data) % 256,
            reinterpret_cast<std::uintptr_t>(host.in.q.data) % 256);
  EXPECT_EQ(*on_device(copy->in().q, 3), 1033.0f);
  *on_device(g.dk, 2) = -1.0f;
  *on_device(copy->in().q, 1) = -2.0f;  // no output: stays on the device
  ASSERT_TRUE(copy->copy_out().ok());
  EXPECT_EQ(host.fused[2 * 24 + 8], -1.0f);
  EXPECT_EQ(host.fused[2 * 24 + 7], 55.0f);
  EXPECT_EQ(host.q[11], 1011.0f);
}

TEST(GpuRun, WritesAroundATensorAreFound) {
  Host host;
  const auto copy = DeviceCopy::make(0, host.in, host.out, host.grads);
  ASSERT_TRUE(copy.ok());
  *(on_device(copy->grads().dq, 0) - 1) = 0.0f;
  EXPECT_EQ(copy->copy_out().message(), "a GPU kernel wrote outside its tensors");
}

}  // namespace
}  // namespace tilewise::tools
