// The command from outside: help, JSON, exit codes, and that a mistake writes nothing and is named.
#ifdef TILEWISE_COMMAND
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "support/command_fixture.h"

namespace tilewise::test {
namespace {

using nlohmann::json;

TEST_F(Command, HelpHasAnExample) {
  EXPECT_EQ(run({"--help"}).exit_code, 0);
  EXPECT_NE(run({"--version"}).out.find('.'), std::string::npos);
  for (const char* sub : {"attend", "grad", "plan", "info", "check", "bench", "demo"}) {
    const Said said = run({sub, "--help"});
    EXPECT_EQ(said.exit_code, 0) << sub;
    EXPECT_NE(said.out.find(std::string("Example:\n  tilewise ") + sub), std::string::npos)
        << said.out;
  }
}

TEST_F(Command, JsonIsForPrograms) {
  const json info = json::parse(run({"info", "--json"}).out);
  EXPECT_FALSE(info["isa_usable"].empty());
  const Said plan =
      run({"plan", "--seq-q", "4096", "--heads-q", "8", "--heads-kv", "2", "--head-dim", "128",
           "--dtype", "f16", "--causal", "--bias", "--sink", "--alibi", "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const json parsed = json::parse(plan.out);
  EXPECT_EQ(parsed["problem"]["heads_kv"], 2);
  EXPECT_EQ(parsed["problem"]["bias"], true);
  EXPECT_GT(parsed["forward"]["io"]["standard_bytes"], parsed["forward"]["io"]["fa2_bytes"]);
  EXPECT_FALSE(parsed["forward"]["passed_over"].empty());
  const Said words = run(Words{"plan"} + qkv_ + Words{"--sweep", "1024", "-o", "chart.svg"});
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_NE(folder_.read("chart.svg").find("<svg"), std::string::npos);
  EXPECT_EQ(run({"bench", "--s", "16,32", "--d", "8", "--pass", "fwd,bwd", "--repeat", "1",
                 "--kernel", "auto,standard", "--json", "b.jsonl"})
                .exit_code,
            0);
  EXPECT_EQ(run({"bench", "--s", "16", "--repeat", "1", "--json", "b.jsonl"}).exit_code, 0);
  std::istringstream lines(folder_.read("b.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_GT(json::parse(line)["ms_median"], 0);
  EXPECT_EQ(count, 2 * 2 * 2 * 2 + 2)
      << "pass x mask x S x kernel, and what the second run appended";
}

TEST_F(Command, CheckPassesAndFails) {
  const Said good =
      run({"check", "--seq-q", "33", "--seq-kv", "20", "--heads-q", "4", "--heads-kv", "2",
           "--causal", "--kernel", "all", "--isa", "all", "--input-seed", "7", "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  const Said given = run(Words{"check"} + qkv_ + Words{"--causal", "--bias", "bias.npy"});
  EXPECT_EQ(given.exit_code, 0) << given.out << given.err;
  EXPECT_NE(given.out.find("1 passed, 0 failed; input seed "), std::string::npos) << given.out;
  // A tier that isn't usable is bad use, not a grid of failures; the emulation is only on request.
  const Said emulated = run({"check", "--grid", "--quick", "--isa", "amx_emulated"});
  EXPECT_EQ(emulated.exit_code, 2);
  EXPECT_NE(emulated.err.find("amx_emulated"), std::string::npos) << emulated.err;
  const Said nothing = run({"check", "--grid", "--quick", "--filter", "no such problem"});
  EXPECT_EQ(nothing.exit_code, 2) << nothing.out;
  EXPECT_NE(nothing.err.find("--filter is \"no such problem\""), std::string::npos) << nothing.err;
}

// What is wrong, and what the message must say.
struct Wrong {
  Words words;
  const char* message;
};

const Words kQkv = {"--q", "q.npy", "--k", "k.npy", "--v", "v.npy"};
const Words kAttend = Words{"attend"} + kQkv + Words{"--out", "old.npy"};
const Words kNoOut = Words{"attend"} + kQkv;
const Words kGrad =
    Words{"grad"} + kQkv + Words{"--dq", "a.npy", "--dk", "b.npy", "--dv", "old.npy"};
const Words kRank3 = {"attend", "--q",       "rank3.npy", "--k",    "rank3.npy",
                      "--v",    "rank3.npy", "--out",     "old.npy"};

const std::vector<Wrong> kBadTensors = {
    {{}, "a subcommand is missing"},
    {{"fly"}, "fly"},
    {kAttend + Words{"--fast"}, "--fast"},
    {{"attend", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy"}, "--q is required"},
    {kNoOut, "--out is required"},
    {{"attend", "--q", "absent.npy", "--k", "k.npy", "--v", "v.npy", "--out", "old.npy"},
     "--q absent.npy: can't be read: No such file"},
    {{"attend", "--q", "cut.npy", "--k", "k.npy", "--v", "v.npy", "--out", "old.npy"}, "truncated"},
    {{"attend", "--q", "text.npy", "--k", "k.npy", "--v", "v.npy", "--out", "old.npy"},
     "not an .npy file"},
    {{"attend", "--q", "q.txt", "--k", "k.npy", "--v", "v.npy", "--out", "old.npy"},
     "accepted are FILE.npy and FILE.safetensors:NAME"},
    {{"attend", "--q", "cu.npy", "--k", "k.npy", "--v", "v.npy", "--out", "old.npy"},
     "is i32; accepted is f32"},
    {{"attend", "--q", "q.npy", "--k", "v.npy", "--v", "v.npy", "--out", "old.npy"},
     "--k has shape (2, 7, 1, 6); accepted are B = 2 and D = 8"},
    {{"attend", "--q", "q.npy", "--k", "k.npy", "--v", "q.npy", "--out", "old.npy"},
     "--v has shape (2, 5, 3, 8)"},
    {{"attend", "--q", "q.npy", "--k", "h.npy", "--v", "h.npy", "--out", "old.npy"}, "heads_kv"},
    {{"attend", "--q", "q.npy", "--k", "half.safetensors:k", "--v", "v.npy", "--out", "old.npy"},
     "--k is f16 but --q is f32"},
    {kRank3, "--q has shape (5, 3, 8); accepted is (B, S, Hq, D)"},
    {kAttend + Words{"--cu-seqlens-q", "cu.npy"},
     "--q has shape (2, 5, 3, 8); accepted is (total, Hq, D)"},
    {kRank3 + Words{"--cu-seqlens-q", "cu.npy", "--cu-seqlens-k", "cu.npy"}, "cu_seqlens_q"},
    {kRank3 + Words{"--cu-seqlens-q", "short.npy", "--cu-seqlens-k", "short.npy"}, "cu_seqlens_q"},
    {kRank3 + Words{"--cu-seqlens-q", "sink.npy"}, "is f32; accepted is i32 or i64"},
    {kAttend + Words{"--seqused-k", "cu.npy"}, "seqused_kv"},
};

const std::vector<Wrong> kBadValues = {
    {kAttend + Words{"--scale", "nan"}, "scale"},
    {kAttend + Words{"--scale", "inf"}, "scale"},
    {kAttend + Words{"--softcap", "-1"}, "softcap"},
    {kAttend + Words{"--dropout", "1"}, "dropout"},
    {kAttend + Words{"--dropout", "-0.5"}, "dropout"},
    {kAttend + Words{"--dropout", "x"}, "--dropout"},
    {kAttend + Words{"--scale", ""}, "--scale: \"\" is not accepted; accepted: a number"},
    {kAttend + Words{"--seed", "18446744073709551616"},
     "accepted: a whole number from 0 to 18446744073709551615"},
    {kAttend + Words{"--window", "-2,0"}, "--window is \"-2,0\"; accepted is LEFT,RIGHT"},
    {kAttend + Words{"--window", "3"}, "--window is \"3\""},
    {kAttend + Words{"--window", "99999999999999999999,1"}, "--window"},
    {kAttend + Words{"--align", "left"}, "--align"},
    {kAttend + Words{"--dtype", "f64"}, "--dtype"},
    {kAttend + Words{"--seed", "-1"}, "--seed"},
    {kAttend + Words{"--bias", "sink.npy"},
     "--bias has shape (3,); accepted is (B|1, Hq|1, Sq|1, Sk|1)"},
    {kAttend + Words{"--bias", "q.npy"}, "bias"},
    {kAttend + Words{"--alibi", "cu.npy"}, "--alibi cu.npy: the array is i32"},
    {kAttend + Words{"--sink", "d_o.npy"}, "--sink"},
    {kAttend + Words{"--sink", "dlse.npy"}, "sink"},
    {kAttend + Words{"--kernel", "fa9"}, "fa9"},
    {kAttend + Words{"--isa", "sse1"}, "sse1"},
    {kAttend + Words{"--threads", "-1"}, "--threads"},
    {kAttend + Words{"--device", "tpu"}, "\"tpu\" is no device; accepted are cpu, cuda and cuda:N"},
    {kAttend + Words{"--device", "cuda:x"}, "is no device"},
    {kAttend + Words{"--device", "cuda"}, "cuda"},
};

const std::vector<Wrong> kBadOutputsAndTheRest = {
    {kNoOut + Words{"--out", "no/such/o.npy"}, "no/such/o.npy: can't be written"},
    {kNoOut + Words{"--out", "folder.npy"}, "it is a directory"},
    {kNoOut + Words{"--out", "o.txt"}, "accepted are FILE.npy and FILE.safetensors:NAME"},
    {kNoOut + Words{"--out", "o.npy", "--lse", "o.npy"}, "two outputs go there"},
    {kNoOut + Words{"--out", "q.npy"}, "would replace the file that q.npy is read from"},
    {kGrad + Words{"--dout", "q.npy"}, "d_o"},
    {kGrad + Words{"--dout", "do.npy", "--dbias", "c.npy"}, "--dbias is asked for without --bias"},
    {kGrad + Words{"--dout", "do.npy", "--dsink", "c.npy"}, "--dsink is asked for without --sink"},
    {kGrad + Words{"--dout", "do.npy", "--dlse", "do.npy"}, "d_lse"},
    {{"plan"}, "no problem is given"},
    {Words{"plan"} + kQkv + Words{"--batch", "2"}, "exclude each other"},
    {{"plan", "--seq-q", "-5"}, "--seq-q"},
    {{"plan", "--seq-q", "64", "--head-dim", "1000"}, "head_dim"},
    {{"plan", "--seq-q", "64", "--heads-q", "3", "--heads-kv", "2"}, "heads_kv"},
    {{"plan", "--seq-q", "64", "--bias", "1,2"}, "--bias is \"1,2\""},
    {{"plan", "--seq-q", "64", "--sink", "sink.npy"}, "--sink is \"sink.npy\""},
    {{"plan", "--seq-q", "64", "--sweep", "128", "-o", "no/such/c.svg"}, "no/such/c.svg"},
    {{"check"}, "no problem is given"},
    {{"check", "--seq-q", "8", "--cu-seqlens-q", "cu.npy"}, "cu_seqlens_q"},
    {{"check", "--seq-q", "8", "--kernel", "fa9"}, "fa9"},
    {{"bench", "--mask", "diagonal"},
     "--mask is \"diagonal\"; accepted are full, causal and LEFT:RIGHT"},
    {{"bench", "--s", "16", "--repeat", "1", "--json", "no/such/b.jsonl"}, "no/such/b.jsonl"},
    {{"demo", "absent.safetensors"}, "can't be read"},
    {{"demo", "half.safetensors"}, "has no layer"},
};

class CommandMistakes : public Command {
 protected:
  void SetUp() override {
    Command::SetUp();
    ::mkdir((folder_ / "folder.npy").c_str(), 0700);
    folder_.write("old.npy", "old");
    folder_.write("cut.npy", folder_.read("q.npy").substr(0, 200));
    folder_.write("text.npy", "hello");
    save("h.npy", random_numbers(DType::kF32, {2, 7, 2, 8}, 8));
    save("rank3.npy", random_numbers(DType::kF32, {5, 3, 8}, 8));
    save("cu.npy", indices({0, 3, 2, 5}));
    save("short.npy", indices({0, 4}));
    save("half.safetensors:k", random_numbers(DType::kF16, {2, 7, 1, 8}, 8));
  }

  void expect_refusals(const std::vector<Wrong>& table) {
    const auto before = folder_.list();
    for (const Wrong& w : table) {
      std::string line;
      for (const std::string& word : w.words) line += word + " ";
      const Said said = run(w.words);
      EXPECT_EQ(said.exit_code, 2) << line << said.err;
      EXPECT_NE(said.err.find(w.message), std::string::npos) << line << "said: " << said.err;
      EXPECT_EQ(folder_.list(), before) << line;
      EXPECT_TRUE(folder_.read("old.npy") == "old") << line;
      folder_.write("old.npy", "old");
    }
  }
};

TEST_F(CommandMistakes, Tensors) {
  expect_refusals(kBadTensors);
}
TEST_F(CommandMistakes, Values) {
  expect_refusals(kBadValues);
}
TEST_F(CommandMistakes, OutputsAndTheRest) {
  expect_refusals(kBadOutputsAndTheRest);
}

}  // namespace
}  // namespace tilewise::test
#endif  // TILEWISE_COMMAND
