// forward and backward: check what the caller handed in, find the plan's row, run it.
#include "tilewise/attention.hpp"
#include "core/format.h"

#include <new>
#include <optional>

#include "api/check_tensors.h"
#include "cpu/registry.h"
#include "cuda/backward.h"
#include "cuda/forward.h"
#include "plan/problem_words.h"

namespace tilewise {
namespace {

struct Choice {
  const cpu::KernelRow* row = nullptr;
  const cpu::Tier* tier = nullptr;
};

// The row and tier that a pass names. A plan may come from a caller who changed it.
Expected<Choice> find_choice(const PassPlan& pass) {
  Choice c;
  for (const cpu::KernelRow& row : cpu::kernel_table())
    if (pass.kernel == row.name) c.row = &row;
  for (const cpu::Tier& tier : cpu::usable_tiers())
    if (pass.isa == tier.name) c.tier = &tier;
  if (c.row && c.tier) return c;
  return Status(StatusCode::kInvalidArgument,
                format_text("plan names kernel \"{}\" on isa \"{}\"; accepted: a plan as make_plan "
                            "returned it",
                            pass.kernel, pass.isa));
}

template <class Run>
Status guarded(Run&& run) {
  try {
    run();
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "the host has no memory left for the list of work"};
  }
}

// A kernel runs after its call has returned, so what it did wrong shows in a later one: the message
// names this call's problem and the one that this thread launched before.
Status with_problem(const Status& s, const Plan& plan) {
  thread_local std::optional<Problem> launched;
  if (s.ok()) launched = plan.problem;
  if (s.code() != StatusCode::kInternal) return s;
  std::string message = format_text("{}; in {}", s.message(), problem_words(plan.problem));
  if (launched) message += "; launched before: " + problem_words(*launched);
  return {s.code(), std::move(message)};
}

Status cuda_forward(const Plan& plan, const Inputs& in, const Outputs& out, const Launch& launch) {
  if (const auto again = cuda::forward_again(plan, in, out, launch))
    return with_problem(*again, plan);
  Status s = check_inputs(plan, in);
  if (s.ok()) s = check_outputs(plan, in, out);
  if (!s.ok()) return s;
  return with_problem(cuda::forward(plan, in, out, launch), plan);
}

Status cuda_backward(const Plan& plan, const Inputs& in, const Gradients& grads,
                     const Launch& launch) {
  if (const auto again = cuda::backward_again(plan, in, grads, launch))
    return with_problem(*again, plan);
  if (plan.backward.kernel.empty())
    return {StatusCode::kUnsupported,
            format_text("the plan has no backward kernel: {}",
                        plan.backward.passed_over.empty() ? "none was planned"
                                                          : plan.backward.passed_over[0].reason)};
  Status s = check_inputs(plan, in);
  if (s.ok()) s = check_gradients(plan, in, grads);
  if (s.ok()) s = check_launch(plan.backward, launch);
  if (!s.ok()) return s;
  return with_problem(cuda::backward(plan, in, grads, launch), plan);
}

}  // namespace

Status forward(const Plan& plan, const Inputs& in, const Outputs& out, const Launch& launch) {
  if (plan.device.kind == Device::Kind::kCuda) return cuda_forward(plan, in, out, launch);
  const auto choice = find_choice(plan.forward);
  Status s = choice.status();
  if (s.ok()) s = check_inputs(plan, in);
  if (s.ok()) s = check_outputs(plan, in, out);
  if (s.ok()) s = check_launch(plan.forward, launch);
  if (!s.ok()) return s;
  return guarded([&] {
    const cpu::ForwardFn kernel = choice->tier->kernels.*(choice->row->forward);
    kernel({plan.problem, plan.forward, in, out, launch.workspace});
  });
}

Status backward(const Plan& plan, const Inputs& in, const Gradients& grads, const Launch& launch) {
  if (plan.device.kind == Device::Kind::kCuda) return cuda_backward(plan, in, grads, launch);
  const auto choice = find_choice(plan.backward);
  Status s = choice.status();
  if (s.ok()) s = check_inputs(plan, in);
  if (s.ok()) s = check_gradients(plan, in, grads);
  if (s.ok()) s = check_launch(plan.backward, launch);
  if (!s.ok()) return s;
  return guarded([&] {
    const cpu::BackwardFn kernel = choice->tier->kernels.*(choice->row->backward);
    kernel({plan.problem, plan.backward, in, grads, launch.workspace,
            choice->row->forward_order == cpu::SumOrder::kOwn});
  });
}

}  // namespace tilewise
