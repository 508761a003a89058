#include "plan/cuda_plan.h"

#include "core/format.h"
#include "cuda/backward_table.h"
#include "cuda/table.h"
#include "plan/io_model.h"

namespace tilewise {
namespace {

constexpr std::int64_t kHopperL2Bytes = 50 << 20;

IoModel cuda_io(const Plan& plan, Pass pass) {
  const std::int64_t fast = plan.options.fast_memory_bytes;
  return io_model(plan.problem, static_cast<double>(fast ? fast : kHopperL2Bytes), pass);
}

}  // namespace

Expected<Plan> cuda_plan(Plan plan) {
  const Options& options = plan.options;
  if (options.kernel != "auto" && options.kernel != cuda::kForwardKernel)
    return Status(StatusCode::kInvalidArgument,
                  format_text("kernel is \"{}\"; accepted on a CUDA device: auto, {}",
                              options.kernel, cuda::kForwardKernel));
  if (options.tile_q || options.tile_kv)
    return Status(StatusCode::kUnsupported,
                  "tile_q and tile_kv are the table's choice on a CUDA device; accepted: 0");
  if (const std::string rule = cuda::why_not_forward(plan.problem); !rule.empty())
    return Status(StatusCode::kUnsupported,
                  format_text("no forward kernel for cuda: {} {}", cuda::kForwardKernel, rule));
  const sm90::ForwardConfig config = cuda::forward_config(plan.problem, options);
  PassPlan& forward = plan.forward;
  forward.kernel = cuda::kForwardKernel;
  forward.isa = "sm_90a";
  forward.tile_q = config.tile_q;
  forward.tile_kv = config.tile_kv;
  forward.packed_heads = config.packed_heads;
  forward.threads = config.threads();
  forward.flops = nominal_flops(plan.problem, Pass::kForward);
  forward.io = cuda_io(plan, Pass::kForward);
  plan.backward.flops = nominal_flops(plan.problem, Pass::kBackward);
  plan.backward.io = cuda_io(plan, Pass::kBackward);
  if (std::string rule = cuda::why_not_backward(plan.problem); !rule.empty()) {
    plan.backward.passed_over = {{cuda::kForwardKernel, std::move(rule)}};
    return plan;
  }
  const sm90::BackwardConfig grads = cuda::backward_config(plan.problem, options);
  PassPlan& backward = plan.backward;
  backward.kernel = cuda::kForwardKernel;
  backward.isa = "sm_90a";
  backward.tile_q = grads.tile_q;
  backward.tile_kv = grads.tile_kv;
  backward.threads = grads.kThreads;
  backward.workspace_bytes =
      static_cast<std::size_t>(cuda::backward_workspace(plan.problem, grads).bytes);
  return plan;
}

}  // namespace tilewise
