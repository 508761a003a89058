// See check_runs.h.
#include "check_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "api/check_lengths.h"
#include "judge.h"
#include "load.h"
#include "progress.h"
#include "random_tensor.h"
#include "reference/check.h"
#include "reference/grid.h"
#include "results.h"

namespace tilewise::tools {
namespace {

using reference::Case;
using reference::Oracle;
using reference::Report;
using reference::Verdict;

// Options for every kernel and tier that "all" stands for.
std::vector<Options> candidates(const RunFlags& run) {
  const Options& wanted = run.options;
  const bool gpu = run.device.kind == Device::Kind::kCuda;
  const auto names = [](const std::string& name, std::vector<std::string> all) {
    return name == "all" ? std::move(all) : std::vector<std::string>{name};
  };
  std::vector<Options> list;
  for (const std::string& kernel : names(wanted.kernel, kernel_names(run.device)))
    for (const std::string& isa :
         names(wanted.isa, gpu ? std::vector<std::string>{"auto"} : isa_names())) {
      list.push_back(wanted);
      list.back().kernel = kernel;
      list.back().isa = isa;
    }
  return list;
}

CheckOutcome outcome_of(const std::string& problem, const Expected<Plan>& plan, const Options& o,
                        const Report& r) {
  CheckOutcome outcome{problem,
                       plan.ok() ? plan->forward.kernel : o.kernel,
                       plan.ok() ? plan->forward.isa : o.isa,
                       {},
                       r.failures};
  for (const Verdict& v : r.verdicts) outcome.figures.push_back(v.text);
  return outcome;
}

// Runs a case on every candidate. Statuses become failures: the problem itself is known to be good.
struct CaseRun {
  const Case& c;
  std::uint64_t seed;
  Device device;
  const std::vector<Options>& options;
  CheckLog::Detail detail;
};
void run_case(const CaseRun& run, CheckLog& log) {
  const auto refuses = [&](const Options& o) {
    const auto plan = make_plan(run.c.problem, run.device, o);
    return !plan.ok() && plan.status().code() == StatusCode::kUnsupported;
  };
  if (std::all_of(run.options.begin(), run.options.end(), refuses)) return log.add_unsupported();
  reference::Trial trial(run.c, run.seed);
  reference::Target target{run.device, {}};
  if (run.device.kind == Device::Kind::kCuda) target.run = run_passes_on_gpu;
  for (const Options& o : run.options) {
    const Report report = check(trial, o, target);
    if (report.unsupported)
      log.add_unsupported();
    else
      log.add(outcome_of(run.c.name, make_plan(run.c.problem, run.device, o), o, report),
              run.detail);
  }
}

std::vector<std::int32_t> lengths_of(const Tensor& t) {
  if (!t.given()) return {};
  const auto* begin = static_cast<const std::int32_t*>(t.data);
  return {begin, begin + t.elements()};
}

std::string words(const Problem& p) {
  return fmt::format("{} B={} Hq={} Hkv={} Sq={} Sk={} D={} Dv={}", name_of(p.dtype), p.batch,
                     p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.head_dim, p.head_dim_v);
}

// NaN in every dtype, so that an element that is not written can't pass.
void poison(const io::HostTensor& t) {
  if (t.given()) std::memset(t.data(), 0xFF, static_cast<std::size_t>(t.bytes()));
}

// Given tensors, their results, and the oracle, made once a kernel's checks have found the tensors
// to be sound: the reference trusts what it gets.
struct Given {
  const Loaded& loaded;
  Results results;
  io::HostTensor d_o;
  std::optional<Oracle> oracle;
};

Status run_given(Given& g, const Plan& plan, Report& report) {
  const Results& r = g.results;
  for (const io::HostTensor* t : {&r.o, &r.lse, &r.dq, &r.dk, &r.dv, &r.dbias, &r.dsink})
    poison(*t);
  const Gradients grads = r.gradients(g.d_o.view(), {});
  const bool backward = !plan.backward.kernel.empty();
  Status s = time_forward(plan, g.loaded.in, r.outputs()).status;
  if (s.ok() && backward) s = time_backward(plan, g.loaded.in, grads).status;
  if (!s.ok()) return s;
  const Problem& p = plan.problem;
  if (!g.oracle)
    g.oracle = make_oracle(p, g.loaded.in, grads, reference::Passes::kForwardAndBackward);
  report.verdicts = judge_run(p, *g.oracle, r.outputs(), backward ? &grads : nullptr);
  for (const Verdict& v : report.verdicts)
    if (!v.pass) report.failures.push_back(v.text);
  return {};
}

}  // namespace

Status check_random(const CheckFlags& f, CheckLog& log) {
  const Expected<Loaded> loaded = load_problem(f.problem);
  if (!loaded.ok()) return loaded.status();
  const Problem& p = loaded->problem;
  const std::vector<Options> options = candidates(f.run);
  // Bad sizes, a kernel that is not there and bad lengths are bad use, not a failed check.
  if (const Expected<Plan> plan = make_plan(p, f.run.device, options.front()); !plan.ok())
    return plan.status();
  if (Status s = check_lengths(p, loaded->in); !s.ok()) return s;
  if (f.kind == reference::InputKind::kHugeLogits && p.alibi != Alibi::kNone)
    return {StatusCode::kInvalidArgument, "--inputs is huge-logits, which excludes --alibi"};
  const Inputs& in = loaded->in;
  const Case c{fmt::format("{} {}", words(p), name_of(f.kind)),
               p,
               {lengths_of(in.cu_seqlens_q), lengths_of(in.cu_seqlens_kv), lengths_of(in.seqused_q),
                lengths_of(in.seqused_kv)},
               f.kind,
               reference::Layout::kDense,
               true,
               false};
  const Progress progress("check");
  run_case({c, f.input_seed, f.run.device, options, CheckLog::Detail::kEverything}, log);
  return {};
}

Status check_tensors(const CheckFlags& f, CheckLog& log) {
  const Expected<Loaded> loaded = load_problem(f.problem);
  if (!loaded.ok()) return loaded.status();
  const Problem& p = loaded->problem;
  Expected<Results> results = allocate_results(p, loaded->in, Passes::kForwardAndBackward);
  if (!results.ok()) return results.status();
  Expected<io::HostTensor> d_o =
      f.dout.empty() ? random_tensor(results->o.dtype(), results->o.shape(), f.input_seed)
                     : load_numbers("--dout", f.dout, results->o.dtype());
  if (!d_o.ok()) return d_o.status();
  Given given{*loaded, std::move(*results), std::move(*d_o), {}};
  const Progress progress("check");
  for (const Options& o : candidates(f.run)) {
    const Expected<Plan> plan = make_plan(p, f.run.device, o);
    if (!plan.ok() && plan.status().code() == StatusCode::kUnsupported &&
        f.run.options.kernel == "all") {
      log.add_unsupported();
      continue;
    }
    if (!plan.ok()) return plan.status();
    Report report;
    if (Status s = run_given(given, *plan, report); !s.ok()) return s;
    log.add(outcome_of(words(p), plan, o, report), CheckLog::Detail::kEverything);
  }
  return {};
}

Status check_grid(const CheckFlags& f, CheckLog& log) {
  RunFlags run = f.run;
  if (run.options.kernel == "auto") run.options.kernel = "all";
  if (run.options.isa == "auto") run.options.isa = "all";
  const std::vector<Options> options = candidates(run);
  const std::vector<Case> cases =
      f.quick ? reference::quick_grid(f.input_seed) : reference::full_grid(f.input_seed);
  const auto chosen = [&](const Case& c) { return c.name.find(f.filter) != std::string::npos; };
  if (std::none_of(cases.begin(), cases.end(), chosen))
    return {StatusCode::kInvalidArgument,
            fmt::format("--filter is \"{}\", which no problem's name holds; such as: {}", f.filter,
                        cases.front().name)};
  // What no problem could be planned with, a tier that this processor lacks, say, is bad use.
  if (const Expected<Plan> plan = make_plan(cases.front().problem, f.run.device, options.front());
      !plan.ok() && plan.status().code() != StatusCode::kUnsupported)
    return plan.status();
  Progress progress("check --grid", static_cast<std::int64_t>(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i, progress.advance())
    if (chosen(cases[i]))
      run_case({cases[i], f.input_seed + i, f.run.device, options, CheckLog::Detail::kFailuresOnly},
               log);
  return {};
}

}  // namespace tilewise::tools
