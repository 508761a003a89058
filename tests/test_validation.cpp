// Every bad input through the C++ face: the status' code, a message that names the argument, its
// value and what is accepted, and not one byte of an output written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "reference/workload.h"
#include "support/seed.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;

// `words`: the argument and the offending value; "accepted" is always required.
void expect_refusal(const Status& status, const std::vector<std::string>& words,
                    StatusCode code = StatusCode::kInvalidArgument) {
  ASSERT_FALSE(status.ok()) << "accepted, though it should name " << words[0];
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code)) << status.message();
  for (const std::string& word : words)
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "\"" << word << "\" is not in: " << status.message();
  EXPECT_NE(status.message().find("accepted"), std::string::npos) << status.message();
}

Case make_case() {
  Case c;
  Problem& p = c.problem;
  p.batch = 2, p.heads_q = 4, p.heads_kv = 2, p.seq_q = 9, p.seq_kv = 11;
  p.head_dim = 16, p.head_dim_v = 8;
  p.alibi = Alibi::kPerHead, p.bias.present = p.sink = true;
  c.d_lse = true;
  return c;
}

Case make_varlen() {
  Case c = make_case();
  c.problem.varlen = {true, true, true, true, 15, 17};
  c.lengths = {{0, 9, 15}, {0, 6, 17}, {9, 2}, {6, 11}};
  return c;
}

// ---- problems ----

struct BadProblem {
  std::function<void(Problem&)> spoil;
  std::vector<std::string> words;
};

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
const std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(Validation, ProblemsThatMakeNoSense) {
  const BadProblem all[] = {
      {[](Problem& p) { p.batch = -1; }, {"batch", "-1"}},
      {[](Problem& p) { p.batch = kHuge; }, {"batch", "9223372036854775807"}},
      {[](Problem& p) { p.heads_q = -4; }, {"heads_q", "-4"}},
      {[](Problem& p) { p.heads_kv = -2; }, {"heads_kv", "-2"}},
      {[](Problem& p) { p.heads_kv = 0; }, {"heads_kv", "0"}},
      {[](Problem& p) { p.heads_kv = 3; }, {"heads_kv", "3", "heads_q", "4"}},
      {[](Problem& p) { p.seq_q = -1; }, {"seq_q", "-1"}},
      {[](Problem& p) { p.seq_kv = -7; }, {"seq_kv", "-7"}},
      {[](Problem& p) { p.seq_kv = kHuge; }, {"seq_kv"}},
      {[](Problem& p) { p.head_dim = 0; }, {"head_dim", "0", "512"}},
      {[](Problem& p) { p.head_dim = 513; }, {"head_dim", "513", "512"}},
      {[](Problem& p) { p.head_dim_v = 0; }, {"head_dim_v", "0"}},
      {[](Problem& p) { p.head_dim_v = 1024; }, {"head_dim_v", "1024"}},
      {[](Problem& p) { p.dtype = DType::kI32; }, {"dtype", "i32", "f32", "f16", "bf16"}},
      {[](Problem& p) { p.dtype = static_cast<DType>(77); }, {"dtype", "f32"}},
      {[](Problem& p) { p.out_dtype = DType::kI32; }, {"out_dtype", "i32"}},
      {[](Problem& p) { p.bias.dtype = DType::kI32; }, {"bias", "i32"}},
      {[](Problem& p) { p.scale = kNan; }, {"scale", "nan"}},
      {[](Problem& p) { p.scale = -kInf; }, {"scale", "-inf"}},
      {[](Problem& p) { p.scale = 3e38f; }, {"scale", "3e+38"}},
      {[](Problem& p) { p.softcap = -1; }, {"softcap", "-1"}},
      {[](Problem& p) { p.softcap = kNan; }, {"softcap", "nan"}},
      {[](Problem& p) { p.softcap = kInf; }, {"softcap", "inf"}},
      {[](Problem& p) { p.softcap = 1e-40f; }, {"softcap", "e-40"}},
      {[](Problem& p) { p.dropout_p = -0.25f; }, {"dropout", "-0.25", "[0, 1)"}},
      {[](Problem& p) { p.dropout_p = 1; }, {"dropout", "1", "[0, 1)"}},
      {[](Problem& p) { p.dropout_p = kNan; }, {"dropout", "nan"}},
      {[](Problem& p) { p.mask.left = -2; }, {"left", "-2", "-1"}},
      {[](Problem& p) { p.mask.right = -5; }, {"right", "-5", "-1"}},
      {[](Problem& p) { p.varlen.total_q = -3; }, {"total_q", "-3"}},
  };
  for (const BadProblem& bad : all) {
    Problem p = make_case().problem;
    bad.spoil(p);
    expect_refusal(make_plan(p).status(), bad.words);
  }
}

TEST(Validation, OptionsThatDoNotExist) {
  const Problem p = make_case().problem;
  Options o;
  o.kernel = "fa9";
  expect_refusal(make_plan(p, {}, o).status(), {"kernel", "fa9", "fa2", "standard"});
  o = {}, o.isa = "avx9";
  expect_refusal(make_plan(p, {}, o).status(), {"isa", "avx9"});
  o = {}, o.threads = -1;
  expect_refusal(make_plan(p, {}, o).status(), {"threads", "-1"});
  o = {}, o.tile_q = -16;
  expect_refusal(make_plan(p, {}, o).status(), {"tile_q", "-16"});
  o = {}, o.tile_kv = 7;
  expect_refusal(make_plan(p, {}, o).status(), {"tile_kv", "7"});
  o = {}, o.fast_memory_bytes = -1;
  expect_refusal(make_plan(p, {}, o).status(), {"fast_memory_bytes", "-1"});
}

// The largest sizes that are accepted give a plan or a status, never an overflow.
TEST(Validation, LargestSizesPlanOrRefuse) {
  Problem p = make_case().problem;
  p.batch = p.heads_q = p.heads_kv = std::int64_t{1} << 31;
  p.seq_q = p.seq_kv = std::int64_t{1} << 40;
  p.head_dim = p.head_dim_v = 512;
  for (const std::string& kernel : kernel_names()) {
    Options o;
    o.kernel = kernel;
    const Expected<Plan> plan = make_plan(p, {}, o);
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.status().message().find("accepted"), std::string::npos);
  }
  // Each tensor possible, the score matrix not: 2^62 numbers would wrap around in bytes.
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seq_q = p.seq_kv = std::int64_t{1} << 31;
  p.head_dim = p.head_dim_v = 64;
  Options standard;
  standard.kernel = "standard";
  EXPECT_EQ(make_plan(p, {}, standard).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(make_plan(p).ok());
}

// ---- tensors ----

class TensorValidation : public testing::Test {
 protected:
  // Runs both passes after `spoil` and expects the refusal from each pass that reads the tensor.
  struct Expectation {
    bool forward = true, backward = true;
    std::vector<std::string> words;
    StatusCode code = StatusCode::kInvalidArgument;
  };
  static void check(const Case& c, const std::function<void(Workload&)>& spoil,
                    const Expectation& want) {
    Workload w(c, tilewise_test::seed());
    const Expected<Plan> plan = make_plan(c.problem);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    spoil(w);
    w.seal_inputs();
    const Workspace forward_space(plan->forward), backward_space(plan->backward);
    if (want.forward)
      expect_refusal(tilewise::forward(*plan, w.in, w.out, forward_space.launch()), want.words,
                     want.code);
    if (want.backward)
      expect_refusal(tilewise::backward(*plan, w.in, w.grads, backward_space.launch()), want.words,
                     want.code);
    EXPECT_TRUE(w.untouched()) << "an output was written";
  }
  static void check_input(const std::function<void(Inputs&)>& spoil,
                          std::vector<std::string> words) {
    check(make_case(), [&](Workload& w) { spoil(w.in); }, {true, true, std::move(words)});
  }
  static void check_output(const std::function<void(Outputs&)>& spoil,
                           std::vector<std::string> words) {
    check(make_case(), [&](Workload& w) { spoil(w.out); }, {true, false, std::move(words)});
  }
  static void check_gradient(const std::function<void(Gradients&)>& spoil,
                             std::vector<std::string> words) {
    check(make_case(), [&](Workload& w) { spoil(w.grads); }, {false, true, std::move(words)});
  }
  static void check_lengths(const std::function<void(std::int32_t*, std::int32_t*)>& spoil,
                            std::vector<std::string> words) {
    check(make_varlen(),
          [&](Workload& w) {
            spoil(static_cast<std::int32_t*>(w.in.cu_seqlens_q.data),
                  static_cast<std::int32_t*>(w.in.seqused_kv.data));
          },
          {true, true, std::move(words)});
  }
};

TEST_F(TensorValidation, OutputsApartFromInputsAndEachOther) {
  check(make_case(), [](Workload& w) { w.out.o.data = w.in.q.data; },
        {true, false, {"o overlaps q", "memory of their own"}});
  check_output([](Outputs& out) { out.lse.data = out.o.data; }, {"o overlaps lse"});
  check_output([](Outputs& out) { out.lse.strides[2] = 0; }, {"lse has stride 0 in dimension 2"});
  check(make_case(), [](Workload& w) { w.grads.dv.data = w.in.bias.data; },
        {false, true, {"dv overlaps bias"}});
  check_gradient([](Gradients& g) { g.dq.data = g.d_o.data; }, {"dq overlaps "});
  check_gradient([](Gradients& g) { g.dv.data = g.dk.data; }, {"dk overlaps dv"});
}

TEST_F(TensorValidation, NullPointers) {
  check_input([](Inputs& in) { in.q.data = nullptr; }, {"q ", "null"});
  check_input([](Inputs& in) { in.k.data = nullptr; }, {"k ", "null"});
  check_input([](Inputs& in) { in.v.data = nullptr; }, {"v ", "null"});
  check_input([](Inputs& in) { in.bias.data = nullptr; }, {"bias", "null"});
  check_input([](Inputs& in) { in.sink.data = nullptr; }, {"sink", "null"});
  check_input([](Inputs& in) { in.alibi_slopes.data = nullptr; }, {"alibi_slopes", "null"});
  check_output([](Outputs& out) { out.o.data = nullptr; }, {"o ", "null"});
  check_gradient([](Gradients& g) { g.o.data = nullptr; }, {"o ", "null"});
  check_gradient([](Gradients& g) { g.lse.data = nullptr; }, {"lse", "null"});
  check_gradient([](Gradients& g) { g.d_o.data = nullptr; }, {"d_o", "null"});
  check_gradient([](Gradients& g) { g.dq.data = nullptr; }, {"dq", "null"});
  check_gradient([](Gradients& g) { g.dk.data = nullptr; }, {"dk", "null"});
  check_gradient([](Gradients& g) { g.dv.data = nullptr; }, {"dv", "null"});
}

TEST_F(TensorValidation, WrongRank) {
  check_input([](Inputs& in) { in.q.rank = 3; }, {"q ", "rank 3", "4"});
  check_input([](Inputs& in) { in.k.rank = 0; }, {"k ", "rank 0"});
  check_input([](Inputs& in) { in.v.rank = 99; }, {"v ", "rank 99"});
  check_input([](Inputs& in) { in.v.rank = -1; }, {"v ", "rank -1"});
  check_input([](Inputs& in) { in.sink.rank = 2; }, {"sink", "rank 2"});
  check_output([](Outputs& out) { out.lse.rank = 2; }, {"lse", "rank 2"});
}

TEST_F(TensorValidation, ShapeMismatch) {
  check_input([](Inputs& in) { in.q.shape[3] = 15; }, {"q ", "15", "16"});
  check_input([](Inputs& in) { in.k.shape[1] = 12; }, {"k ", "12", "11"});
  check_input([](Inputs& in) { in.v.shape[2] = 4; }, {"v ", "4", "2"});
  check_input([](Inputs& in) { in.v.shape[0] = -1; }, {"v ", "-1"});
  check_input([](Inputs& in) { in.bias.shape[3] = 1; }, {"bias", "11"});
  check_input([](Inputs& in) { in.alibi_slopes.shape[0] = 2; }, {"alibi_slopes", "2", "4"});
  check_output([](Outputs& out) { out.o.shape[3] = 16; }, {"o ", "16", "8"});
  check_output([](Outputs& out) { out.lse.shape[1] = 2; }, {"lse", "2", "4"});
  check_gradient([](Gradients& g) { g.d_o.shape[1] = 8; }, {"d_o", "8", "9"});
  check_gradient([](Gradients& g) { g.d_lse.shape[2] = 8; }, {"d_lse", "8", "9"});
  check_gradient([](Gradients& g) { g.dq.shape[2] = 2; }, {"dq", "2", "4"});
  check_gradient([](Gradients& g) { g.dk.shape[2] = 4; }, {"dk", "4", "2"});
  check_gradient([](Gradients& g) { g.dbias.shape[0] = 1; }, {"dbias", "1", "2"});
  check_gradient([](Gradients& g) { g.dsink.shape[0] = 5; }, {"dsink", "5", "4"});
}

TEST_F(TensorValidation, WrongDtype) {
  check_input([](Inputs& in) { in.q.dtype = DType::kBF16; }, {"q ", "bf16", "f32"});
  check_input([](Inputs& in) { in.k.dtype = DType::kI32; }, {"k ", "i32", "f32"});
  check_input([](Inputs& in) { in.sink.dtype = DType::kF16; }, {"sink", "f16", "f32"});
  check_output([](Outputs& out) { out.o.dtype = DType::kF16; }, {"o ", "f16", "f32"});
  check_output([](Outputs& out) { out.lse.dtype = DType::kBF16; }, {"lse", "bf16", "f32"});
  check_gradient([](Gradients& g) { g.dv.dtype = DType::kF16; }, {"dv", "f16", "f32"});
}

TEST_F(TensorValidation, LastDimensionNotContiguous) {
  check_input([](Inputs& in) { in.q.strides[3] = 2; }, {"q ", "stride", "2", "1"});
  check_input([](Inputs& in) { in.k.strides[3] = 0; }, {"k ", "stride", "0"});
  check_input([](Inputs& in) { in.v.strides[3] = -1; }, {"v ", "stride", "-1"});
  check_input([](Inputs& in) { in.bias.strides[3] = 3; }, {"bias", "stride", "3"});
}

TEST_F(TensorValidation, WrongDeviceOrAlignment) {
  check_input([](Inputs& in) { in.q.device.kind = Device::Kind::kCuda; }, {"q ", "device"});
  check_input([](Inputs& in) { in.k.data = static_cast<char*>(in.k.data) + 1; }, {"k ", "address"});
}

// Something is given that the problem doesn't have: silently leaving it out would be a wrong
// result.
TEST_F(TensorValidation, TensorsThatTheProblemDoesNotHave) {
  Case c = make_case();
  c.problem.bias.present = c.problem.sink = false;
  c.problem.alibi = Alibi::kNone;
  float number = 0;
  const Tensor extra = make_tensor(&number, DType::kF32, 1);
  for (const auto& [name, member] : std::vector<std::pair<const char*, Tensor Inputs::*>>{
           {"bias", &Inputs::bias},
           {"sink", &Inputs::sink},
           {"alibi_slopes", &Inputs::alibi_slopes},
           {"cu_seqlens_q", &Inputs::cu_seqlens_q},
           {"seqused_kv", &Inputs::seqused_kv}})
    check(c, [&, at = member](Workload& w) { w.in.*at = extra; }, {true, true, {name}});
}

TEST_F(TensorValidation, SequenceLengths) {
  check_lengths([](auto* cu, auto*) { cu[0] = 1; }, {"cu_seqlens_q", "1", "0"});
  check_lengths([](auto* cu, auto*) { cu[1] = -1; }, {"cu_seqlens_q", "-1"});
  check_lengths([](auto* cu, auto*) { cu[1] = 16; }, {"cu_seqlens_q", "16"});  // then falls to 15
  check_lengths([](auto* cu, auto*) { cu[2] = 14; }, {"cu_seqlens_q", "14", "15"});
  check_lengths([](auto* cu, auto*) { cu[2] = std::numeric_limits<std::int32_t>::max(); },
                {"cu_seqlens_q", "2147483647"});
  check_lengths([](auto*, auto* used) { used[0] = 7; }, {"seqused_kv", "7", "6"});
  check_lengths([](auto*, auto* used) { used[1] = -1; }, {"seqused_kv", "-1"});
}

TEST_F(TensorValidation, Workspace) {
  const Case c = make_case();
  Workload w(c, tilewise_test::seed());
  const Expected<Plan> plan = make_plan(c.problem);
  ASSERT_TRUE(plan.ok());
  ASSERT_GT(plan->forward.workspace_bytes, 0u);
  const Workspace space(plan->forward);
  Launch launch = space.launch();
  expect_refusal(tilewise::forward(*plan, w.in, w.out, {}), {"workspace", "null"});
  --launch.workspace_bytes;
  expect_refusal(tilewise::forward(*plan, w.in, w.out, launch),
                 {"workspace_bytes", std::to_string(launch.workspace_bytes)},
                 StatusCode::kOutOfMemory);
  launch = space.launch();
  launch.workspace = static_cast<char*>(launch.workspace) + 4;
  expect_refusal(tilewise::forward(*plan, w.in, w.out, launch), {"workspace", "64"});
  EXPECT_TRUE(w.untouched());
}

TEST_F(TensorValidation, PlansThatNobodyMade) {
  const Case c = make_case();
  Workload w(c, tilewise_test::seed());
  expect_refusal(tilewise::forward(Plan{}, w.in, w.out), {"plan"});
  expect_refusal(tilewise::backward(Plan{}, w.in, w.grads), {"plan"});
  EXPECT_TRUE(w.untouched());
}

}  // namespace
