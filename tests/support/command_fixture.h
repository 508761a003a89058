// The fixture of the command's tests: a GQA problem on disk, in every way the command takes one,
// and the library's own answer to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/tensor_file.h"
#include "support/command.h"
#include "tilewise/attention.hpp"

namespace tilewise::test {

using io::HostTensor;
using io::Role;
using Words = std::vector<std::string>;
using Shape = std::vector<std::int64_t>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline HostTensor random_numbers(DType dtype, const Shape& shape, std::uint64_t seed) {
  HostTensor t = std::move(*HostTensor::create(DType::kF32, shape));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : t.as<float>()) x = normal(random);
  return std::move(*io::convert(t, dtype));
}

inline HostTensor indices(std::initializer_list<std::int32_t> values) {
  const Shape shape = {static_cast<std::int64_t>(values.size())};
  HostTensor t = std::move(*HostTensor::create(DType::kI32, shape));
  std::copy(values.begin(), values.end(), t.as<std::int32_t>().begin());
  return t;
}

inline void expect_equal(const HostTensor& got, const HostTensor& want, const char* what) {
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_TRUE(
      std::equal(got.shape().begin(), got.shape().end(), want.shape().begin(), want.shape().end()))
      << what << " " << io::shape_text(got.shape());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), static_cast<std::size_t>(want.bytes())), 0)
      << what;
}

class Command : public ::testing::Test {
 protected:
  void SetUp() override {
    save("q.npy", q_);
    save("k.npy", k_);
    save("v.npy", v_);
    save("do.npy", d_o_);
    save("bias.npy", bias_);
    save("sink.npy", sink_);
    save("slopes.npy", sink_);
    save("dlse.npy", d_lse_);
    problem_.batch = 2;
    problem_.heads_q = 3;
    problem_.heads_kv = 1;
    problem_.seq_q = 5;
    problem_.seq_kv = 7;
    problem_.head_dim = 8;
    problem_.head_dim_v = 6;
    problem_.mask.causal = true;
    in_.q = q_.view();
    in_.k = k_.view();
    in_.v = v_.view();
  }

  void save(const std::string& name, const HostTensor& t) {
    ASSERT_TRUE(io::write_tensors({{{folder_ / name, t.view()}}}).ok()) << name;
  }
  HostTensor load(const std::string& name) {
    Expected<HostTensor> t = io::read_tensor(folder_ / name, Role::kNumbers);
    if (t.ok()) return std::move(*t);
    ADD_FAILURE() << t.status().message();
    return {};
  }
  Said run(const Words& words) { return run_command(folder_, words); }

  // O and LSE as the library computes them.
  std::pair<HostTensor, HostTensor> forward_of(const Problem& p, const Inputs& in, Shape o,
                                               Shape lse) {
    const Expected<Plan> plan = make_plan(p);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    std::pair r(std::move(*HostTensor::create(p.dtype, o)),
                std::move(*HostTensor::create(DType::kF32, lse)));
    const Workspace space(plan->forward);
    const Status s = forward(*plan, in, {r.first.view(), r.second.view()}, space.launch());
    EXPECT_TRUE(s.ok()) << s.message();
    return r;
  }

  ScratchFolder folder_;
  HostTensor q_ = random_numbers(DType::kF32, {2, 5, 3, 8}, 1);
  HostTensor k_ = random_numbers(DType::kF32, {2, 7, 1, 8}, 2);
  HostTensor v_ = random_numbers(DType::kF32, {2, 7, 1, 6}, 3);
  HostTensor d_o_ = random_numbers(DType::kF32, {2, 5, 3, 6}, 4);
  HostTensor bias_ = random_numbers(DType::kF32, {1, 3, 5, 7}, 5);
  HostTensor sink_ = random_numbers(DType::kF32, {3}, 6);
  HostTensor d_lse_ = random_numbers(DType::kF32, {2, 3, 5}, 7);
  Problem problem_;
  Inputs in_;
  const Words qkv_ = {"--q", "q.npy", "--k", "k.npy", "--v", "v.npy"};
};

}  // namespace tilewise::test
