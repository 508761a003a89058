// Declares the shared flags.
#include "flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <map>

#include "numbers.h"

namespace tilewise::tools {
namespace {

const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}};
const std::map<std::string, Align> kAligns = {{"bottom-right", Align::kBottomRight},
                                              {"top-left", Align::kTopLeft}};

void add_tensor_flags(CLI::App& app, TensorFlags& t, From from) {
  constexpr const char* kGroup = "Tensors (FILE.npy or FILE.safetensors:NAME)";
  const bool required = from == From::kTensors;
  const auto add = [&](const char* name, std::string& to, const char* help) {
    return app.add_option(name, to, help)->group(kGroup)->type_name("F");
  };
  add("--q", t.q, "Q, (B, Sq, Hq, D); with --cu-seqlens-q (total, Hq, D)")->required(required);
  add("--k", t.k, "K, (B, Sk, Hkv, D); with --cu-seqlens-k (total, Hkv, D)")->required(required);
  add("--v", t.v, "V, shaped as K, D may differ")->required(required);
  CLI::Option* score_tensors[] = {
      add("--alibi", t.alibi, "ALiBi slopes, (Hq) or (B, Hq)"),
      add("--bias", t.bias, "added to the scores, (B|1, Hq|1, Sq|1, Sk|1); -inf hides a key"),
      add("--sink", t.sink, "a logit per query head, (Hq), that joins the denominator only")};
  add("--cu-seqlens-q", t.cu_seqlens_q, "where each sequence of packed Q begins, ints (B + 1)");
  add("--cu-seqlens-k", t.cu_seqlens_k, "the same for K and V");
  add("--seqused-q", t.seqused_q, "rows of Q in use, ints (B)");
  add("--seqused-k", t.seqused_k, "rows of K and V in use, ints (B)");
  if (from == From::kTensors) return;
  for (CLI::Option* option : score_tensors)
    option->expected(0, 1)
        ->type_name("[F]")
        ->description(option->get_description() + "; with sizes: no value")
        ->default_str(kSwitchedOn);  // what no value means
}

void add_score_flags(CLI::App& app, ScoreFlags& s) {
  constexpr const char* kGroup = "Scores";
  add_dtype_flag(app, s.dtype, "round Q, K, V to this; default: the file's")->group(kGroup);
  app.add_flag("--causal", s.causal, "query i sees keys up to i (+ Sk - Sq)")->group(kGroup);
  app.add_option("--window", s.window, "see LEFT keys before the diagonal and RIGHT after; -1: all")
      ->type_name("LEFT,RIGHT")
      ->group(kGroup);
  app.add_option("--align", s.align, "where the diagonal ends or begins; default bottom-right")
      ->transform(CLI::CheckedTransformer(kAligns, CLI::ignore_case).description(""))
      ->type_name("bottom-right|top-left")
      ->group(kGroup);
  app.add_option("--scale", s.scale, "of Q K^T; default 1/sqrt(D)")
      ->check(real_number())
      ->type_name("X")
      ->group(kGroup);
  app.add_option("--softcap", s.softcap, "s becomes C tanh(s / C)")
      ->check(real_number())
      ->type_name("C")
      ->group(kGroup);
  app.add_option("--dropout", s.dropout, "drop probabilities with P")
      ->check(real_number())
      ->type_name("P")
      ->group(kGroup);
  const auto number = [&](const char* name, std::uint64_t& to, const char* help) {
    app.add_option(name, to, help)
        ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
        ->type_name("N")
        ->group(kGroup);
  };
  number("--seed", s.seed, "of dropout");
  number("--offset", s.offset, "of dropout's counter");
}

void add_size_flags(CLI::App& app, SizeFlags& s) {
  const auto add = [&](const char* name, std::int64_t& to, const char* help) {
    app.add_option(name, to, help)
        ->check(whole_number())
        ->type_name("N")
        ->group("Sizes, instead of --q, --k and --v");
  };
  add("--batch", s.batch, "B; default 1");
  add("--heads-q", s.heads_q, "Hq; default 1");
  add("--heads-kv", s.heads_kv, "Hkv; default Hq");
  add("--seq-q", s.seq_q, "Sq");
  add("--seq-kv", s.seq_kv, "Sk; default Sq");
  add("--head-dim", s.head_dim, "D; default 64");
  add("--head-dim-v", s.head_dim_v, "Dv; default D");
}

std::string parse_device(const std::string& text, Device& device) {
  std::string_view rest = text;
  if (rest == "cpu") {
    device = {};
    return {};
  }
  int index = 0;
  bool good = rest.substr(0, 4) == "cuda";
  if (good && rest.size() > 4) {
    const auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), index);
    good = rest[4] == ':' && error == std::errc() && *end == '\0' && index >= 0;
  }
  if (!good) return fmt::format("\"{}\" is no device; accepted are cpu, cuda and cuda:N", text);
  device = {Device::Kind::kCuda, index};
  return {};
}

}  // namespace

CLI::Option* add_dtype_flag(CLI::App& app, std::optional<DType>& dtype, const std::string& help) {
  return app.add_option("--dtype", dtype, help)
      ->transform(CLI::CheckedTransformer(kDTypes, CLI::ignore_case).description(""))
      ->type_name("f32|f16|bf16");
}

CLI::Option* add_device_flag(CLI::App& app, Device& device) {
  return app
      .add_option_function<std::string>(
          "--device",
          [&device](const std::string& text) {
            if (const std::string wrong = parse_device(text, device); !wrong.empty())
              throw CLI::ValidationError("--device", wrong);
          },
          "default cpu")
      ->type_name("cpu|cuda[:N]");
}

void add_problem_flags(CLI::App& app, ProblemFlags& flags, From from) {
  add_tensor_flags(app, flags.tensors, from);
  if (from == From::kTensorsOrSizes) add_size_flags(app, flags.sizes);
  add_score_flags(app, flags.score);
}

void add_run_flags(CLI::App& app, RunFlags& flags) {
  constexpr const char* kGroup = "How to run";
  Options& o = flags.options;
  add_device_flag(app, flags.device)->group(kGroup);
  app.add_option("--kernel", o.kernel, "default auto; `tilewise info` lists them")
      ->type_name("auto|split|fa2|fa1|standard|reference|fa3")
      ->group(kGroup);
  app.add_option("--isa", o.isa, "SIMD tier; default auto")
      ->type_name("auto|avx512_bf16|avx512|avx2|scalar")
      ->group(kGroup);
  const auto count = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->check(whole_number())->type_name("N")->group(kGroup);
  };
  count("--threads", o.threads, "CPU threads; default all. Results never depend on it");
  app.add_flag("--deterministic", o.deterministic, "gradients bitwise equal on every run")
      ->group(kGroup);
  count("--tile-q", o.tile_q, "rows of a query tile");
  count("--tile-kv", o.tile_kv, "rows of a key tile");
  app.add_flag("--json", flags.json, "print JSON")->group(kGroup);
}

}  // namespace tilewise::tools
