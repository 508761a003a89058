// `tilewise attend`: the forward on tensors in files.
#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "command.h"
#include "load.h"
#include "progress.h"
#include "report.h"
#include "results.h"

namespace tilewise::tools {
namespace {

struct Flags {
  ProblemFlags problem;
  RunFlags run;
  std::string out, lse;
};

Status attend(const Flags& f) {
  std::vector<std::string> paths = {f.out};
  if (!f.lse.empty()) paths.push_back(f.lse);
  if (Status s = io::check_outputs(paths); !s.ok()) return s;
  if (Status s = io::check_keeps_inputs(paths, f.problem.tensors.paths()); !s.ok()) return s;
  const Expected<Loaded> loaded = load_problem(f.problem);
  if (!loaded.ok()) return loaded.status();
  const Expected<Plan> plan = make_plan(loaded->problem, f.run.device, f.run.options);
  if (!plan.ok()) return plan.status();
  const Expected<Results> results = allocate_results(plan->problem, loaded->in, Passes::kForward);
  if (!results.ok()) return results.status();

  Timed t;
  {
    const Progress progress("attend: forward on " + plan->forward.kernel);
    t = time_forward(*plan, loaded->in, results->outputs());
  }
  if (!t.status.ok()) return t.status;
  std::vector<io::Output> written = {{f.out, results->o.view()}};
  if (!f.lse.empty()) written.push_back({f.lse, results->lse.view()});
  if (Status s = io::write_tensors(written); !s.ok()) return s;
  print_run({*plan, plan->forward, t.ms, written}, f.run.json);
  return {};
}

}  // namespace

void add_attend(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("attend", "O = softmax(scale Q K^T + bias, mask) V, and LSE");
  const auto f = std::make_shared<Flags>();
  add_problem_flags(*sub, f->problem, From::kTensors);
  add_run_flags(*sub, f->run);
  sub->add_option("--out", f->out, "O, shaped as Q with V's last extent")
      ->required()
      ->type_name("F");
  sub->add_option("--lse", f->lse, "LSE, f32, (B, Hq, Sq) or (Hq, total)")->type_name("F");
  sub->footer(
      "An .npy output of a 16-bit result is float32; .safetensors keep the dtype. Outputs are "
      "written\n"
      "under a temporary name and renamed; outputs of one .safetensors file land in that one "
      "file.\n\n"
      "Example:\n"
      "  tilewise attend --q qkv.safetensors:q --k qkv.safetensors:k --v qkv.safetensors:v \\\n"
      "    --causal --out o.npy --lse lse.npy");
  sub->callback([f, &run] {
    run = [f] {
      const Status s = attend(*f);
      return s.ok() ? kExitOk : fail("attend", s);
    };
  });
}

}  // namespace tilewise::tools
