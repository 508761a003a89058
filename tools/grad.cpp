// `tilewise grad`: the gradients on tensors in files; runs the forward itself.
#include <fmt/format.h>

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
  std::string dout, dlse;
  std::string dq, dk, dv, dbias, dsink;
};

std::vector<io::Output> outputs_of(const Flags& f, const Results& r) {
  std::vector<io::Output> outputs = {{f.dq, r.dq.view()}, {f.dk, r.dk.view()}, {f.dv, r.dv.view()}};
  if (!f.dbias.empty()) outputs.push_back({f.dbias, r.dbias.view()});
  if (!f.dsink.empty()) outputs.push_back({f.dsink, r.dsink.view()});
  return outputs;
}

Status needs(const char* output, const char* input) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{} is asked for without {}; accepted is both or neither", output, input)};
}

Status grad(const Flags& f) {
  if (!f.dbias.empty() && f.problem.tensors.bias.empty()) return needs("--dbias", "--bias");
  if (!f.dsink.empty() && f.problem.tensors.sink.empty()) return needs("--dsink", "--sink");
  std::vector<std::string> paths;
  for (const io::Output& o : outputs_of(f, {})) paths.push_back(o.path);
  if (Status s = io::check_outputs(paths); !s.ok()) return s;
  std::vector<std::string> inputs = f.problem.tensors.paths();
  inputs.insert(inputs.end(), {f.dout, f.dlse});
  if (Status s = io::check_keeps_inputs(paths, inputs); !s.ok()) return s;

  const Expected<Loaded> loaded = load_problem(f.problem);
  if (!loaded.ok()) return loaded.status();
  const Problem& p = loaded->problem;
  const auto d_o = load_numbers("--dout", f.dout, p.out_dtype.value_or(p.dtype));
  if (!d_o.ok()) return d_o.status();
  const auto d_lse = load_numbers("--dlse", f.dlse, DType::kF32);
  if (!d_lse.ok()) return d_lse.status();
  const Expected<Plan> plan = make_plan(p, f.run.device, f.run.options);
  if (!plan.ok()) return plan.status();
  Expected<Results> results = allocate_results(p, loaded->in, Passes::kForwardAndBackward);
  if (!results.ok()) return results.status();
  if (f.dbias.empty()) results->dbias = {};
  if (f.dsink.empty()) results->dsink = {};

  Timed t;
  {
    const Progress progress("grad: forward and backward on " + plan->backward.kernel);
    t = time_forward(*plan, loaded->in, results->outputs());
    if (t.status.ok())
      t = time_backward(*plan, loaded->in, results->gradients(d_o->view(), d_lse->view()));
  }
  if (!t.status.ok()) return t.status;
  const std::vector<io::Output> written = outputs_of(f, *results);
  if (Status s = io::write_tensors(written); !s.ok()) return s;
  print_run({*plan, plan->backward, t.ms, written}, f.run.json);
  return {};
}

}  // namespace

void add_grad(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("grad", "dQ, dK, dV and, when asked, dbias and dsink");
  const auto f = std::make_shared<Flags>();
  add_problem_flags(*sub, f->problem, From::kTensors);
  add_run_flags(*sub, f->run);
  const auto add = [&](const char* name, std::string& to, const char* help) {
    return sub->add_option(name, to, help)->type_name("F");
  };
  add("--dout", f->dout, "dO, shaped as O")->required();
  add("--dlse", f->dlse, "the gradient that arrives through LSE, f32, shaped as LSE");
  add("--dq", f->dq, "dQ, shaped as Q")->required();
  add("--dk", f->dk, "dK, shaped as K")->required();
  add("--dv", f->dv, "dV, shaped as V")->required();
  add("--dbias", f->dbias, "f32, shaped as the bias, summed over what it broadcasts");
  add("--dsink", f->dsink, "f32, (Hq)");
  sub->footer(
      "The forward is run first. An .npy output of a 16-bit result is float32; .safetensors keep "
      "the\n"
      "dtype. Outputs of one .safetensors file land in that one file.\n\n"
      "Example:\n"
      "  tilewise grad --q q.npy --k k.npy --v v.npy --dout do.npy --causal \\\n"
      "    --dq g.safetensors:dq --dk g.safetensors:dk --dv g.safetensors:dv");
  sub->callback([f, &run] {
    run = [f] {
      const Status s = grad(*f);
      return s.ok() ? kExitOk : fail("grad", s);
    };
  });
}

}  // namespace tilewise::tools
