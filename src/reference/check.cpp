// See check.h.
#include "reference/check.h"

#include <algorithm>

#include "reference/low.h"

namespace tilewise::reference {
namespace {

// Numbers that each tensor should show before its largest error means something, draws at most, and
// numbers of a tensor beyond which a draw is dear; then the most that a trial may grow to.
constexpr std::int64_t kEnough = 4096, kMostDraws = 8, kDear = 32768;
constexpr std::int64_t kGrownDraws = 64, kGrownNumbers = 1 << 21;

std::int64_t largest_tensor(const Workload& w) {
  std::int64_t most = 1;
  for (const Tensor* t : {&w.out.o, &w.grads.dq, &w.grads.dk, &w.grads.dv})
    most = std::max(most, t->elements());
  return most;
}

std::int64_t draws_needed(const Workload& w) {
  std::int64_t least = kEnough, most = 1;
  for (const Tensor* t :
       {&w.out.o, &w.grads.dq, &w.grads.dk, &w.grads.dv, &w.grads.dbias, &w.grads.dsink}) {
    if (!t->given() || t->elements() == 0) continue;
    least = std::min(least, t->elements());
    most = std::max(most, t->elements());
  }
  return std::clamp(std::min((kEnough + least - 1) / least, kDear / most), std::int64_t{1},
                    kMostDraws);
}

Status run_on_cpu(const Plan& plan, const Inputs& in, const Outputs& out, const Gradients& grads) {
  const auto named = [](const char* pass, const Status& s) {
    return s.ok() ? s : Status(s.code(), std::string(pass) + ": " + s.message());
  };
  const Workspace forward_space(plan.forward), backward_space(plan.backward);
  const Status s = named("forward", tilewise::forward(plan, in, out, forward_space.launch()));
  if (!s.ok() || plan.backward.kernel.empty()) return s;
  return named("backward", tilewise::backward(plan, in, grads, backward_space.launch()));
}

// Runs one draw. False, with the reason in the report, when there is nothing to measure.
bool run(const Plan& plan, Workload& w, const Target& target, Report& report) {
  w.poison_outputs();
  w.poison_gradients();
  const Status s =
      target.run ? target.run(plan, w.in, w.out, w.grads) : run_on_cpu(plan, w.in, w.out, w.grads);
  report.unsupported = s.code() == StatusCode::kUnsupported;
  if (!s.ok()) {
    report.failures.push_back(s.message());
    return false;
  }
  if (const std::string damage = w.damage(); !damage.empty()) report.failures.push_back(damage);
  return true;
}

void take(Report& report, Verdict v) {
  if (!v.pass) report.failures.push_back(v.text);
  report.verdicts.push_back(std::move(v));
}

}  // namespace

Oracle make_oracle(const Problem& p, const Inputs& in, const Gradients& grads, Passes passes) {
  Oracle o;
  o.ref = forward(p, in);
  o.low = low_forward(p, in);
  o.logit_magnitude = logit_magnitude(p, in);
  if (passes == Passes::kForward) return o;
  o.grad_ref = backward(p, in, grads.d_o, grads.d_lse);
  o.grad_low = low_backward(p, in, grads.d_o, grads.d_lse, RowSum::kSoftmax);
  o.grad_low_from_output = low_backward(p, in, grads.d_o, grads.d_lse, RowSum::kOutput);
  o.grad_magnitude = backward_magnitude(p, in, grads.d_o, grads.d_lse);
  return o;
}

Errors measure_output(const Problem& p, const Oracle& oracle, const Outputs& out) {
  return measure({"O", out.o, oracle.ref.o, oracle.low.o, p.dtype});
}

std::vector<Errors> measure_gradients(const Problem& p, const Oracle& oracle,
                                      const Gradients& grads) {
  std::vector<Errors> errors;
  const auto add = [&](const char* name, const Tensor& t, std::vector<double> BackwardResult::*of) {
    if (t.given())
      errors.push_back(
          measure({name, t, oracle.grad_ref.*of, oracle.grad_low.*of, p.dtype, Quantity::kGradient,
                   &(oracle.grad_low_from_output.*of), &(oracle.grad_magnitude.*of)}));
  };
  add("dQ", grads.dq, &BackwardResult::dq);
  add("dK", grads.dk, &BackwardResult::dk);
  add("dV", grads.dv, &BackwardResult::dv);
  add("dbias", grads.dbias, &BackwardResult::dbias);
  add("dsink", grads.dsink, &BackwardResult::dsink);
  return errors;
}

std::vector<Verdict> judge_lse(const Oracle& oracle, const Outputs& out) {
  if (!out.lse.given()) return {};
  return {judge_lse(out.lse, oracle.ref.lse, oracle.logit_magnitude)};
}

Trial::Draw::Draw(const Case& c, std::uint64_t seed, const Adjust& adjust) : work(c, seed) {
  if (adjust) {
    adjust(work);
    work.seal_inputs();
  }
  oracle = make_oracle(c.problem, work.in, work.grads, Passes::kForwardAndBackward);
}

void Trial::draw_up_to(std::int64_t count) {
  for (std::int64_t i = static_cast<std::int64_t>(draws.size()); i < count; ++i)
    draws.push_back(
        std::make_unique<Draw>(c, seed_ + static_cast<std::uint64_t>(i) * 7919, adjust_));
}

Trial::Trial(const Case& given, std::uint64_t seed, const Adjust& adjust)
    : c(given), seed_(seed), adjust_(adjust) {
  draw_up_to(1);
  draw_up_to(draws_needed(draws[0]->work));
}

bool Trial::grow() {
  const std::int64_t count = 2 * static_cast<std::int64_t>(draws.size());
  if (count > kGrownDraws || count * largest_tensor(draws[0]->work) > kGrownNumbers) return false;
  draw_up_to(count);
  return true;
}

namespace {

// Runs one draw and adds its errors to `all`; what it finds wrong by itself goes to the report.
struct Subject {
  const Plan& plan;
  const Target& target;
};
void measure(const Subject& subject, Trial::Draw& draw, std::vector<Errors>& all, Report& report) {
  const Plan& plan = subject.plan;
  if (!run(plan, draw.work, subject.target, report)) return;
  for (Verdict& v : judge_lse(draw.oracle, draw.work.out)) take(report, std::move(v));
  std::vector<Errors> errors;
  if (!plan.backward.kernel.empty())
    errors = measure_gradients(plan.problem, draw.oracle, draw.work.grads);
  errors.insert(errors.begin(), measure_output(plan.problem, draw.oracle, draw.work.out));
  if (all.empty())
    all = std::move(errors);
  else
    for (std::size_t i = 0; i < all.size(); ++i) all[i].merge(errors[i]);
}

}  // namespace

Report check(Trial& trial, const Options& options, const Target& target) {
  Report report;
  const Expected<Plan> plan = make_plan(trial.c.problem, target.device, options);
  if (!plan.ok()) {
    report.unsupported = plan.status().code() == StatusCode::kUnsupported;
    report.failures.push_back("plan: " + plan.status().message());
    return report;
  }
  std::vector<Errors> all;
  std::size_t measured = 0;
  while (true) {
    for (; measured < trial.draws.size(); ++measured) {
      measure({*plan, target}, *trial.draws[measured], all, report);
      if (!report.failures.empty()) return report;
    }
    std::vector<Verdict> verdicts;
    verdicts.reserve(all.size());
    for (const Errors& e : all) verdicts.push_back(judge(e));
    const bool pass =
        std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.pass; });
    if (!pass && trial.grow()) continue;
    for (Verdict& v : verdicts) take(report, std::move(v));
    return report;
  }
}

}  // namespace tilewise::reference
