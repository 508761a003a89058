// `tilewise check`: kernels against the float64 reference under the accuracy rule: on one problem
// with random tensors, on given tensors, or over the whole grid of problems.
#include "check_runs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <random>

#include "command.h"
#include "gpu_memory.h"

namespace tilewise::tools {
namespace {

using reference::InputKind;

const std::map<std::string, InputKind> kKinds = {{"normal", InputKind::kNormal},
                                                 {"outliers", InputKind::kOutliers},
                                                 {"constant-rows", InputKind::kConstantRows},
                                                 {"huge-logits", InputKind::kHugeLogits}};

int check(const CheckFlags& f) {
  if (f.run.device.kind == Device::Kind::kCuda)
    if (Status s = use_gpu(f.run.device.index); !s.ok()) return fail("check", s);
  CheckLog log(f.run.json ? CheckLog::Style::kJson : CheckLog::Style::kText, f.input_seed);
  const bool tensors = !f.problem.tensors.q.empty();
  const Status s = f.grid    ? check_grid(f, log)
                   : tensors ? check_tensors(f, log)
                             : check_random(f, log);
  if (!s.ok()) return fail("check", s);
  log.finish();
  return log.failed() ? kExitFailedCheck : kExitOk;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("check", "a kernel against the float64 reference");
  const auto f = std::make_shared<CheckFlags>();
  f->input_seed = std::random_device()();
  add_problem_flags(*sub, f->problem, From::kTensorsOrSizes);
  add_run_flags(*sub, f->run);
  constexpr const char* kGroup = "Check";
  sub->get_option("--kernel")->description("default auto; `all` takes every one");
  sub->get_option("--isa")->description("SIMD tier; default auto; `all` takes every one");
  sub->add_option("--dout", f->dout, "dO with --q, --k and --v; default N(0, 1)")
      ->type_name("F")
      ->group(kGroup);
  sub->add_option("--inputs", f->kind, "what random tensors hold; default normal")
      ->transform(CLI::CheckedTransformer(kKinds).description(""))
      ->type_name("normal|outliers|constant-rows|huge-logits")
      ->group(kGroup);
  sub->add_option("--input-seed", f->input_seed, "of random tensors; default fresh, always printed")
      ->type_name("N")
      ->group(kGroup);
  CLI::Option* grid = sub->add_flag("--grid", f->grid,
                                    "every kernel and tier over thousands of problems; takes long")
                          ->group(kGroup);
  sub->add_flag("--quick", f->quick, "with --grid: a sample that touches every feature and edge")
      ->needs(grid)
      ->group(kGroup);
  sub->add_option("--filter", f->filter, "with --grid: only problems whose name holds TEXT")
      ->needs(grid)
      ->type_name("TEXT")
      ->group(kGroup);
  sub->footer(
      "Passes when O, LSE and every gradient keep the accuracy rule (src/reference/accuracy.h): "
      "infinite\n"
      "or NaN where the reference is, at most twice the error of standard attention carried out in "
      "the\n"
      "input dtype, and a relative norm of the error of 2e-6 (f32), 1e-3 (f16), 8e-3 (bf16), three "
      "times\n"
      "that for gradients. Exit code 1 when one does not.\n\n"
      "Example:\n"
      "  tilewise check --batch 2 --heads-q 6 --heads-kv 2 --seq-q 333 --head-dim 64 --dtype bf16 "
      "\\\n"
      "    --causal --kernel all --isa all");
  sub->callback([f, &run] { run = [f] { return check(*f); }; });
}

}  // namespace tilewise::tools
