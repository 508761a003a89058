// See check.h.
#include "reference/check.h"

#include "reference/low.h"

namespace tilewise::reference {
namespace {

// Adds what went wrong to the report; false when there is nothing further to look at.
bool passed(Report& report, const char* pass, const Status& status) {
  if (status.ok()) return true;
  report.unsupported = status.code() == StatusCode::kUnsupported;
  report.failures.push_back(std::string(pass) + ": " + status.message());
  return false;
}

void take(Report& report, std::vector<Verdict> verdicts) {
  for (Verdict& v : verdicts) {
    if (!v.pass) report.failures.push_back(v.text);
    report.verdicts.push_back(std::move(v));
  }
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

std::vector<Verdict> judge_forward(const Problem& p, const Oracle& oracle, const Outputs& out) {
  std::vector<Verdict> v;
  v.push_back(judge({"O", out.o, oracle.ref.o, oracle.low.o, p.dtype}));
  if (out.lse.given()) v.push_back(judge_lse(out.lse, oracle.ref.lse, oracle.logit_magnitude));
  return v;
}

std::vector<Verdict> judge_backward(const Problem& p, const Oracle& oracle,
                                    const Gradients& grads) {
  std::vector<Verdict> v;
  const auto add = [&](const char* name, const Tensor& t, std::vector<double> BackwardResult::*of) {
    if (t.given())
      v.push_back(
          judge({name, t, oracle.grad_ref.*of, oracle.grad_low.*of, p.dtype, Quantity::kGradient,
                 &(oracle.grad_low_from_output.*of), &(oracle.grad_magnitude.*of)}));
  };
  add("dQ", grads.dq, &BackwardResult::dq);
  add("dK", grads.dk, &BackwardResult::dk);
  add("dV", grads.dv, &BackwardResult::dv);
  add("dbias", grads.dbias, &BackwardResult::dbias);
  add("dsink", grads.dsink, &BackwardResult::dsink);
  return v;
}

Report check(const Case& c, Workload& w, const Oracle& oracle, const Options& options) {
  Report report;
  const Expected<Plan> plan = make_plan(c.problem, {}, options);
  if (!passed(report, "plan", plan.status())) return report;

  w.poison_outputs();
  w.poison_gradients();
  const Workspace forward_space(plan->forward);
  if (!passed(report, "forward", tilewise::forward(*plan, w.in, w.out, forward_space.launch())))
    return report;
  take(report, judge_forward(c.problem, oracle, w.out));
  if (!plan->backward.kernel.empty()) {
    const Workspace space(plan->backward);
    if (passed(report, "backward", tilewise::backward(*plan, w.in, w.grads, space.launch())))
      take(report, judge_backward(c.problem, oracle, w.grads));
  }
  if (const std::string damage = w.damage(); !damage.empty()) report.failures.push_back(damage);
  return report;
}

}  // namespace tilewise::reference
