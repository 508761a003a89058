// See demo_layer.h.
#include "demo_layer.h"

#include <algorithm>

#include "judge.h"
#include "random_tensor.h"

namespace tilewise::tools {

Expected<DemoLayer> DemoLayer::load(const std::string& path, const std::string& layer,
                                    DType dtype) {
  ProblemFlags flags;
  flags.tensors.q = path + ":" + layer + ".q";
  flags.tensors.k = path + ":" + layer + ".k";
  flags.tensors.v = path + ":" + layer + ".v";
  flags.score.dtype = dtype;
  Expected<Loaded> loaded = load_problem(flags);
  if (!loaded.ok()) return loaded.status();
  DemoLayer result;
  result.loaded_ = std::move(*loaded);
  const Problem& p = result.loaded_.problem;
  Expected<Results> results = allocate_results(p, result.loaded_.in, Passes::kForwardAndBackward);
  if (!results.ok()) return results.status();
  result.results_ = std::move(*results);
  Expected<io::HostTensor> d_o = random_tensor(dtype, result.results_.o.shape(), 1);
  if (!d_o.ok()) return d_o.status();
  result.d_o_ = std::move(*d_o);
  return result;
}

Expected<DemoRow> DemoLayer::run(const std::string& kernel, int repeat) {
  Options options;
  options.kernel = kernel;
  const Expected<Plan> plan = make_plan(loaded_.problem, {}, options);
  if (!plan.ok()) return plan.status();
  const Outputs out = results_.outputs();
  const Gradients grads = results_.gradients(d_o_.view(), {});
  std::vector<double> forward_ms, backward_ms;
  for (int i = 0; i <= repeat; ++i) {  // the first is not counted
    const Timed forward = time_forward(*plan, loaded_.in, out);
    if (!forward.status.ok()) return forward.status;
    const Timed backward = time_backward(*plan, loaded_.in, grads);
    if (!backward.status.ok()) return backward.status;
    if (i == 0) continue;
    forward_ms.push_back(forward.ms);
    backward_ms.push_back(backward.ms);
  }
  if (!has_oracle_) {
    oracle_ = make_oracle(plan->problem, loaded_.in, grads, reference::Passes::kForwardAndBackward);
    has_oracle_ = true;
  }
  DemoRow row{*plan, plan->forward.kernel, plan->problem.dtype, 0, 0, 0, {}, true};
  row.forward_ms = median(std::move(forward_ms));
  row.backward_ms = median(std::move(backward_ms));
  row.workspace_bytes = std::max(plan->forward.workspace_bytes, plan->backward.workspace_bytes);
  row.verdicts = judge_run(plan->problem, oracle_, out, &grads);
  for (const reference::Verdict& v : row.verdicts) row.pass = row.pass && v.pass;
  return row;
}

}  // namespace tilewise::tools
