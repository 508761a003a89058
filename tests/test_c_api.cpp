// The C face: the same numbers as the C++ face, sizes that grow both ways, and every misuse
// answered with a code and a message that names the argument.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "c_face.h"
#include "tilewise/tilewise.h"
#include "tilewise/tilewise.hpp"

namespace {

constexpr std::int64_t kBatch = 2, kSeq = 37, kHeads = 3, kDim = 16;
constexpr std::size_t kElements = kBatch * kSeq * kHeads * kDim, kRows = kBatch * kHeads * kSeq;

std::vector<float> random_floats(std::size_t n) {
  static std::mt19937 random(20260101);
  std::vector<float> x(n);
  for (float& value : x) value = std::normal_distribution<float>()(random);
  return x;
}

tw_problem small_problem() {
  tw_problem p = tw_problem_init();
  p.batch = kBatch, p.seq_q = p.seq_kv = kSeq, p.heads_q = p.heads_kv = kHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.causal = 1;
  return p;
}

struct PlanDeleter {
  void operator()(tw_plan* p) const { tw_plan_destroy(p); }
};
using PlanPtr = std::unique_ptr<tw_plan, PlanDeleter>;

PlanPtr make(const tw_problem& p, const tw_options* options = nullptr) {
  tw_plan* plan = nullptr;
  EXPECT_EQ(tw_plan_create(&p, TW_CPU, 0, options, &plan), TW_OK) << tw_last_error();
  return PlanPtr(plan);
}

// Fails with `status` and a message that holds `part`.
#define EXPECT_REFUSED(call, status, part)                                                    \
  do {                                                                                        \
    EXPECT_EQ((call), status);                                                                \
    EXPECT_NE(std::string(tw_last_error()).find(part), std::string::npos) << tw_last_error(); \
  } while (false)

tw_status create(const void* problem, tw_plan** plan) {
  return tw_plan_create(static_cast<const tw_problem*>(problem), TW_CPU, 0, nullptr, plan);
}

TEST(CApi, VersionIsTheHeaders) {
  EXPECT_STREQ(tw_version(), TW_VERSION);
}

TEST(CApi, GivesTheNumbersOfTheCxxFace) {
  auto q = random_floats(kElements), k = random_floats(kElements), v = random_floats(kElements);
  auto d_o = random_floats(kElements);
  struct Result {
    std::vector<float> o = std::vector<float>(kElements), lse = std::vector<float>(kRows);
    std::vector<float> dq = o, dk = o, dv = o;
  } c, cxx;
  const CAttention call{kBatch,      kSeq,        kHeads,     kDim,         q.data(),
                        k.data(),    v.data(),    c.o.data(), c.lse.data(), d_o.data(),
                        c.dq.data(), c.dk.data(), c.dv.data()};
  ASSERT_EQ(c_attention(&call), TW_OK) << tw_last_error();

  using namespace tilewise;
  Problem p;
  p.batch = kBatch, p.seq_q = p.seq_kv = kSeq, p.heads_q = p.heads_kv = kHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.mask.causal = true;
  const auto plan = make_plan(p);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto dense = [](std::vector<float>& x) {
    return make_tensor(x.data(), DType::kF32, kBatch, kSeq, kHeads, kDim);
  };
  Inputs in;
  in.q = dense(q), in.k = dense(k), in.v = dense(v);
  const Outputs out{dense(cxx.o), make_tensor(cxx.lse.data(), DType::kF32, kBatch, kHeads, kSeq)};
  const Workspace fwd(plan->forward), bwd(plan->backward);
  const Status f = forward(*plan, in, out, fwd.launch());
  ASSERT_TRUE(f.ok()) << f.message();
  Gradients grads;
  grads.o = out.o, grads.lse = out.lse, grads.d_o = dense(d_o);
  grads.dq = dense(cxx.dq), grads.dk = dense(cxx.dk), grads.dv = dense(cxx.dv);
  const Status b = backward(*plan, in, grads, bwd.launch());
  ASSERT_TRUE(b.ok()) << b.message();
  EXPECT_EQ(c.o, cxx.o);
  EXPECT_EQ(c.lse, cxx.lse);
  EXPECT_EQ(c.dq, cxx.dq);
  EXPECT_EQ(c.dk, cxx.dk);
  EXPECT_EQ(c.dv, cxx.dv);
}

TEST(CApi, DescribesThePlan) {
  const PlanPtr plan = make(small_problem());
  ASSERT_TRUE(plan);
  tilewise::Problem p;
  p.batch = kBatch, p.seq_q = p.seq_kv = kSeq, p.heads_q = p.heads_kv = kHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.mask.causal = true;
  const auto cxx = tilewise::make_plan(p);
  EXPECT_EQ(tw_plan_describe(plan.get()), cxx->describe());
  for (const auto& [pass, expected] :
       {std::pair{TW_FORWARD, &cxx->forward}, std::pair{TW_BACKWARD, &cxx->backward}}) {
    tw_pass_info info = tw_pass_info_init();
    ASSERT_EQ(tw_plan_pass(plan.get(), pass, &info), TW_OK) << tw_last_error();
    EXPECT_EQ(info.kernel, expected->kernel);
    EXPECT_EQ(info.isa, expected->isa);
    EXPECT_EQ(info.tile_q, expected->tile_q);
    EXPECT_EQ(info.tile_kv, expected->tile_kv);
    EXPECT_EQ(info.threads, expected->threads);
    EXPECT_EQ(info.workspace_bytes, expected->workspace_bytes);
    EXPECT_EQ(info.flops, expected->flops);
    EXPECT_EQ(info.least_bytes, expected->io.least_bytes);
    EXPECT_EQ(info.standard_bytes, expected->io.standard_bytes);
    EXPECT_EQ(info.fa1_bytes, expected->io.fa1_bytes);
    EXPECT_EQ(info.fa2_bytes, expected->io.fa2_bytes);
    ASSERT_EQ(static_cast<std::size_t>(info.refusals), expected->passed_over.size());
    for (std::int32_t i = 0; i < info.refusals; ++i) {
      const char *kernel = nullptr, *reason = nullptr;
      ASSERT_EQ(tw_plan_refusal(plan.get(), pass, i, &kernel, &reason), TW_OK);
      EXPECT_EQ(kernel, expected->passed_over[i].kernel);
      EXPECT_EQ(reason, expected->passed_over[i].reason);
    }
  }
}

TEST(CApi, EveryKernelNameMakesAPlan) {
  const char* names = tw_kernel_names(TW_CPU, 0);
  ASSERT_NE(names, nullptr) << tw_last_error();
  std::string list = names;
  ASSERT_FALSE(list.empty());
  ASSERT_NE(tw_isa_names(), nullptr);
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, end - at);
    tw_options options = tw_options_init();
    options.kernel = name.c_str();
    EXPECT_TRUE(make(small_problem(), &options)) << name;
    at = end + 1;
  }
}

TEST(CApi, AnOlderStructTakesTheDefaults) {
  // As if tw_problem had once ended before window_left: what follows must not be read.
  tw_problem p = small_problem();
  p.causal = 0;
  p.struct_size = offsetof(tw_problem, window_left);
  p.window_left = -77;
  p.dropout_p = 5.0f;
  tw_plan* plan = nullptr;
  EXPECT_EQ(create(&p, &plan), TW_OK) << tw_last_error();
  tw_plan_destroy(plan);
}

TEST(CApi, ANewerStructIsTakenWhileItsNewFieldsAreZero) {
  struct {
    tw_problem p;
    std::int64_t newer[2];
  } bigger{small_problem(), {0, 0}};
  bigger.p.struct_size = sizeof bigger;
  tw_plan* plan = nullptr;
  EXPECT_EQ(create(&bigger, &plan), TW_OK) << tw_last_error();
  tw_plan_destroy(plan);
  bigger.newer[1] = 1;
  EXPECT_REFUSED(create(&bigger, &plan), TW_INVALID_ARGUMENT, "tw_problem: struct_size is");
  EXPECT_EQ(plan, nullptr);
}

TEST(CApi, PassInfoFillsOnlyWhatTheCallerKnows) {
  const PlanPtr plan = make(small_problem());
  tw_pass_info info;
  std::memset(&info, 0x5A, sizeof info);
  info.struct_size = offsetof(tw_pass_info, workspace_bytes);
  ASSERT_EQ(tw_plan_pass(plan.get(), TW_FORWARD, &info), TW_OK) << tw_last_error();
  EXPECT_GT(info.threads, 0);
  std::size_t untouched;
  std::memset(&untouched, 0x5A, sizeof untouched);
  EXPECT_EQ(info.workspace_bytes, untouched);
}

TEST(CApi, UninitializedSizesAreNamed) {
  tw_plan* plan = nullptr;
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, sizeof(tw_problem) + 3,
                                 std::size_t{1} << 40, ~std::size_t{0}}) {
    tw_problem p = small_problem();
    p.struct_size = size;
    EXPECT_REFUSED(create(&p, &plan), TW_INVALID_ARGUMENT, "set it to sizeof(tw_problem)");
  }
  const PlanPtr good = make(small_problem());
  tw_inputs in{};
  tw_outputs out = tw_outputs_init();
  EXPECT_REFUSED(tw_forward(good.get(), &in, &out, nullptr), TW_INVALID_ARGUMENT, "tw_inputs");
  in = tw_inputs_init();
  tw_tensor q{};
  in.q = &q;
  EXPECT_REFUSED(tw_forward(good.get(), &in, &out, nullptr), TW_INVALID_ARGUMENT, "q: tw_tensor");
}

TEST(CApi, NullPointersAreNamed) {
  const PlanPtr plan = make(small_problem());
  const tw_problem p = small_problem();
  const tw_inputs in = tw_inputs_init();
  const tw_outputs out = tw_outputs_init();
  const tw_gradients grads = tw_gradients_init();
  tw_pass_info info = tw_pass_info_init();
  const char* text = nullptr;
  EXPECT_REFUSED(tw_plan_create(&p, TW_CPU, 0, nullptr, nullptr), TW_INVALID_ARGUMENT, "plan");
  tw_plan* made = plan.get();
  EXPECT_REFUSED(create(nullptr, &made), TW_INVALID_ARGUMENT, "tw_problem");
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(tw_plan_describe(nullptr), nullptr);
  EXPECT_REFUSED(tw_plan_pass(nullptr, TW_FORWARD, &info), TW_INVALID_ARGUMENT, "plan");
  EXPECT_REFUSED(tw_plan_pass(plan.get(), TW_FORWARD, nullptr), TW_INVALID_ARGUMENT, "info");
  EXPECT_REFUSED(tw_plan_pass(plan.get(), 7, &info), TW_INVALID_ARGUMENT, "pass is 7");
  EXPECT_REFUSED(tw_plan_refusal(plan.get(), TW_FORWARD, -1, &text, &text), TW_INVALID_ARGUMENT,
                 "index is -1");
  EXPECT_REFUSED(tw_forward(nullptr, &in, &out, nullptr), TW_INVALID_ARGUMENT, "plan");
  EXPECT_REFUSED(tw_forward(plan.get(), nullptr, &out, nullptr), TW_INVALID_ARGUMENT, "tw_inputs");
  EXPECT_REFUSED(tw_forward(plan.get(), &in, nullptr, nullptr), TW_INVALID_ARGUMENT, "tw_outputs");
  EXPECT_REFUSED(tw_forward(plan.get(), &in, &out, nullptr), TW_INVALID_ARGUMENT, "q");
  EXPECT_REFUSED(tw_backward(nullptr, &in, &grads, nullptr), TW_INVALID_ARGUMENT, "plan");
  EXPECT_REFUSED(tw_backward(plan.get(), &in, nullptr, nullptr), TW_INVALID_ARGUMENT,
                 "tw_gradients");
  tw_plan_destroy(nullptr);
}

TEST(CApi, ValuesOutsideAnEnumAreNamed) {
  tw_plan* plan = nullptr;
  tw_problem p = small_problem();
  p.align = 9;
  EXPECT_REFUSED(create(&p, &plan), TW_INVALID_ARGUMENT, "align is 9");
  p = small_problem();
  p.dtype = -3;
  EXPECT_REFUSED(create(&p, &plan), TW_INVALID_ARGUMENT, "dtype is -3");
  p = small_problem();
  p.causal = 2;
  EXPECT_REFUSED(create(&p, &plan), TW_INVALID_ARGUMENT, "causal is 2");
  p = small_problem();
  EXPECT_REFUSED(tw_plan_create(&p, 5, 0, nullptr, &plan), TW_INVALID_ARGUMENT, "device_kind is 5");
  EXPECT_EQ(tw_kernel_names(-1, 0), nullptr);
}

TEST(CApi, TheLibrarysOwnMessageArrives) {
  tw_plan* plan = nullptr;
  tw_problem p = small_problem();
  p.dropout_p = 1.5f;
  EXPECT_REFUSED(create(&p, &plan), TW_INVALID_ARGUMENT, "1.5");
  tw_options options = tw_options_init();
  options.kernel = "no such kernel";
  p = small_problem();
  EXPECT_NE(tw_plan_create(&p, TW_CPU, 0, &options, &plan), TW_OK);
  EXPECT_NE(std::string(tw_last_error()).find("no such kernel"), std::string::npos);
}

}  // namespace
