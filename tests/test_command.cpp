// The command from outside: what it writes is what the library computes.
#ifdef TILEWISE_COMMAND
#include <nlohmann/json.hpp>

#include "support/command_fixture.h"

namespace tilewise::test {
namespace {

using nlohmann::json;

TEST_F(Command, AttendWritesWhatTheLibraryComputes) {
  const Said said =
      run(Words{"attend"} + qkv_ + Words{"--causal", "--out", "o.npy", "--lse", "lse.npy"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(said.err, "");
  EXPECT_NE(said.out.find("o.npy  f32 (2, 5, 3, 6)"), std::string::npos) << said.out;
  const auto [o, lse] = forward_of(problem_, in_, {2, 5, 3, 6}, {2, 3, 5});
  expect_equal(load("o.npy"), o, "O");
  expect_equal(load("lse.npy"), lse, "LSE");
}

TEST_F(Command, AttendTakesEveryScoreFlag) {
  const Said said = run(
      Words{"attend"} + qkv_ +
      Words{"--window",  "-1,2",     "--align",   "top-left",   "--scale", "-0.25",
            "--softcap", "7",        "--alibi",   "slopes.npy", "--bias",  "bias.npy",
            "--sink",    "sink.npy", "--dropout", "0.25",       "--seed",  "18446744073709551615",
            "--offset",  "3",        "--threads", "1",          "--out",   "o.npy"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  problem_.mask = {false, -1, 2, Align::kTopLeft};
  problem_.scale = -0.25f;
  problem_.softcap = 7;
  problem_.alibi = Alibi::kPerHead;
  problem_.bias = {true, true, false, false, false, DType::kF32};
  problem_.sink = true;
  problem_.dropout_p = 0.25f;
  in_.alibi_slopes = sink_.view();
  in_.bias = bias_.view();
  in_.sink = sink_.view();
  in_.dropout_seed = ~std::uint64_t{0};
  in_.dropout_offset = 3;
  expect_equal(load("o.npy"), forward_of(problem_, in_, {2, 5, 3, 6}, {2, 3, 5}).first, "O");
}

TEST_F(Command, DtypeRoundsTheInputsAndSafetensorsKeepIt) {
  const Said said = run(
      Words{"attend"} + qkv_ +
      Words{"--causal", "--dtype", "bf16", "--out", "r.safetensors:o", "--lse", "r.safetensors:l"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  problem_.dtype = DType::kBF16;
  const auto q = io::convert(q_, DType::kBF16), k = io::convert(k_, DType::kBF16),
             v = io::convert(v_, DType::kBF16);
  in_ = {};
  in_.q = q->view();
  in_.k = k->view();
  in_.v = v->view();
  const auto [o, lse] = forward_of(problem_, in_, {2, 5, 3, 6}, {2, 3, 5});
  expect_equal(load("r.safetensors:o"), o, "O");
  expect_equal(load("r.safetensors:l"), lse, "LSE");

  ASSERT_EQ(run(Words{"attend"} + qkv_ + Words{"--causal", "--dtype", "bf16", "--out", "o.npy"})
                .exit_code,
            0);
  expect_equal(load("o.npy"), *io::convert(o, DType::kF32), "O as float32");
}

TEST_F(Command, PackedSequencesWithEmptyOnes) {
  // Three sequences of 4, 0 and 6 rows of Q, 0, 8 and 6 of K and V.
  const HostTensor q = random_numbers(DType::kF32, {10, 3, 8}, 11),
                   k = random_numbers(DType::kF32, {14, 1, 8}, 12),
                   v = random_numbers(DType::kF32, {14, 1, 6}, 13), cu_q = indices({0, 4, 4, 10}),
                   cu_k = indices({0, 0, 8, 14}), used = indices({0, 5, 6});
  save("p.safetensors:q", q);
  const io::Output file[] = {
      {folder_ / "p.safetensors:q", q.view()},     {folder_ / "p.safetensors:k", k.view()},
      {folder_ / "p.safetensors:v", v.view()},     {folder_ / "p.safetensors:cq", cu_q.view()},
      {folder_ / "p.safetensors:ck", cu_k.view()}, {folder_ / "p.safetensors:uk", used.view()}};
  ASSERT_TRUE(io::write_tensors(file).ok());
  const Said said =
      run({"attend", "--q", "p.safetensors:q", "--k", "p.safetensors:k", "--v", "p.safetensors:v",
           "--cu-seqlens-q", "p.safetensors:cq", "--cu-seqlens-k", "p.safetensors:ck",
           "--seqused-k", "p.safetensors:uk", "--causal", "--out", "o.npy", "--lse", "lse.npy"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  problem_.batch = 3;
  problem_.seq_q = 6;
  problem_.seq_kv = 8;
  problem_.varlen = {true, true, false, true, 10, 14};
  in_ = {};
  in_.q = q.view();
  in_.k = k.view();
  in_.v = v.view();
  in_.cu_seqlens_q = cu_q.view();
  in_.cu_seqlens_kv = cu_k.view();
  in_.seqused_kv = used.view();
  const auto [o, lse] = forward_of(problem_, in_, {10, 3, 6}, {3, 10});
  expect_equal(load("o.npy"), o, "O");
  expect_equal(load("lse.npy"), lse, "LSE");
}

TEST_F(Command, GradWritesWhatTheLibraryComputes) {
  const Said said = run(Words{"grad"} + qkv_ +
                        Words{"--causal",         "--bias",  "bias.npy",         "--sink",
                              "sink.npy",         "--dout",  "do.npy",           "--dlse",
                              "dlse.npy",         "--dq",    "g.safetensors:dq", "--dk",
                              "g.safetensors:dk", "--dv",    "g.safetensors:dv", "--dbias",
                              "dbias.npy",        "--dsink", "dsink.npy",        "--json"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(json::parse(said.out)["outputs"].size(), 5u);
  problem_.bias = {true, true, false, false, false, DType::kF32};
  problem_.sink = true;
  in_.bias = bias_.view();
  in_.sink = sink_.view();
  const auto [o, lse] = forward_of(problem_, in_, {2, 5, 3, 6}, {2, 3, 5});
  const Expected<Plan> plan = make_plan(problem_);
  const auto like = [](const HostTensor& t) {
    return std::move(*HostTensor::create(t.dtype(), t.shape()));
  };
  const HostTensor dq = like(q_), dk = like(k_), dv = like(v_), dbias = like(bias_),
                   dsink = like(sink_);
  const Workspace space(plan->backward);
  const Status s = backward(*plan, in_,
                            {o.view(), lse.view(), d_o_.view(), d_lse_.view(), dq.view(), dk.view(),
                             dv.view(), dbias.view(), dsink.view()},
                            space.launch());
  ASSERT_TRUE(s.ok()) << s.message();
  expect_equal(load("g.safetensors:dq"), dq, "dQ");
  expect_equal(load("g.safetensors:dk"), dk, "dK");
  expect_equal(load("g.safetensors:dv"), dv, "dV");
  expect_equal(load("dbias.npy"), dbias, "dbias");
  expect_equal(load("dsink.npy"), dsink, "dsink");
}

}  // namespace
}  // namespace tilewise::test
#endif  // TILEWISE_COMMAND
