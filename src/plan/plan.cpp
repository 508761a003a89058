// make_plan: checks the problem, then takes the first row of the backend's table that the options
// allow, and says why the others were passed over.

#include <cmath>

#include "core/format.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "cpu/registry.h"
#include "cpu/simd/matrix.h"
#include "cpu/tiles.h"
#include "cuda/table.h"
#include "plan/check_problem.h"
#include "plan/cuda_plan.h"
#include "plan/io_model.h"

namespace tilewise {
namespace {

std::string listed(const std::vector<std::string>& names) {
  return format_text("auto, {}", comma_separated(names));
}

Expected<const cpu::Tier*> find_tier(const Options& options) {
  if (const std::string cap = cpu::unknown_isa_cap(); !cap.empty()) {
    std::vector<std::string> tiers;
    for (const cpu::Tier& tier : cpu::all_tiers()) tiers.push_back(tier.name);
    return Status(
        StatusCode::kInvalidArgument,
        format_text("TILEWISE_CPU_ISA is \"{}\"; accepted: {}", cap, comma_separated(tiers)));
  }
  for (const cpu::Tier& tier : cpu::usable_tiers())
    if (options.isa == "auto" || options.isa == tier.name) return &tier;
  for (const cpu::Tier& tier : cpu::all_tiers())
    if (options.isa == tier.name)
      return Status(StatusCode::kUnavailable,
                    format_text("isa is \"{}\", which this processor lacks or TILEWISE_CPU_ISA "
                                "forbids; accepted here: {}",
                                options.isa, listed(isa_names())));
  return Status(StatusCode::kInvalidArgument,
                format_text("isa is \"{}\"; accepted here: {}", options.isa, listed(isa_names())));
}

Expected<const cpu::KernelRow*> find_row(const Problem& problem, const Options& options) {
  for (const cpu::KernelRow& row : cpu::kernel_table())
    if (options.kernel == "auto" ? row.automatic(problem) : options.kernel == row.name) return &row;
  return Status(StatusCode::kInvalidArgument,
                format_text("kernel is \"{}\"; accepted on the CPU: {}", options.kernel,
                            listed(kernel_names())));
}

Status check_tile(const char* name, std::int64_t value) {
  if (value == 0 || (value > 0 && value % cpu::kTileStep == 0 && value <= cpu::kMaxTile)) return {};
  return {StatusCode::kInvalidArgument,
          format_text("{} is {}; accepted: 0 (the plan's choice) or a multiple of {} up to {}",
                      name, value, cpu::kTileStep, cpu::kMaxTile)};
}

std::int64_t workspace_bytes(const cpu::KernelRow& row, const Problem& problem, Pass pass,
                             const PassPlan& shape) {
  return (pass == Pass::kForward ? row.forward_bytes : row.backward_bytes)(problem, shape);
}

// `pass_plan` has the tiles and threads that the others are priced with.
std::vector<Refusal> passed_over(const Plan& plan, Pass pass, const cpu::KernelRow& taken,
                                 const PassPlan& pass_plan) {
  std::vector<Refusal> out;
  for (const cpu::KernelRow& row : cpu::kernel_table()) {
    const bool same =
        pass == Pass::kForward ? row.forward == taken.forward : row.backward == taken.backward;
    if (same) continue;
    std::string reason = plan.options.kernel == "auto"
                             ? row.not_automatic
                             : format_text("kernel = \"{}\" was asked for", plan.options.kernel);
    const std::int64_t bytes = workspace_bytes(row, plan.problem, pass, pass_plan);
    if (bytes > static_cast<std::int64_t>(pass_plan.workspace_bytes))
      reason += format_text("; its workspace would be {:.4g} MiB", std::ldexp(bytes, -20));
    out.push_back({row.name, reason});
  }
  return out;
}

PassPlan cpu_pass(const Plan& plan, Pass pass, const cpu::KernelRow& row, const cpu::Tier& tier) {
  const Options& options = plan.options;
  PassPlan out;
  out.kernel = row.name;
  out.isa = tier.name;
  out.flops = nominal_flops(plan.problem, pass);
  const std::int64_t fast =
      options.fast_memory_bytes ? options.fast_memory_bytes : cpu::machine().l2_bytes;
  out.io = io_model(plan.problem, static_cast<double>(fast), pass);
  out.threads = options.threads ? options.threads
                                : cpu::worthwhile_threads(out.flops, out.io.least_bytes,
                                                          cpu::default_threads());
  const cpu::Tiles tiles = pass == Pass::kForward
                               ? row.forward_tiles(plan.problem, options, out.threads)
                               : cpu::backward_tiles(plan.problem, options);
  out.tile_q = tiles.q;
  out.tile_kv = tiles.kv;
  out.workspace_bytes = static_cast<std::size_t>(workspace_bytes(row, plan.problem, pass, out));
  out.passed_over = passed_over(plan, pass, row, out);
  return out;
}

Expected<Plan> cpu_plan(Plan plan) {
  const auto row = find_row(plan.problem, plan.options);
  if (!row.ok()) return row.status();
  const auto tier = find_tier(plan.options);
  if (!tier.ok()) return tier.status();
  Status s = check_tile("tile_q", plan.options.tile_q);
  if (s.ok()) s = check_tile("tile_kv", plan.options.tile_kv);
  if (!s.ok()) return s;
  plan.forward = cpu_pass(plan, Pass::kForward, **row, **tier);
  plan.backward = cpu_pass(plan, Pass::kBackward, **row, **tier);
  if (plan.forward.workspace_bytes >= cpu::kTooManyBytes ||
      plan.backward.workspace_bytes >= cpu::kTooManyBytes)
    return Status(StatusCode::kUnsupported,
                  format_text("kernel {} would need a workspace of 2^60 bytes or more for this "
                              "problem; accepted: a smaller problem, or a kernel of: {}",
                              (*row)->name, listed(kernel_names())));
  return plan;
}

}  // namespace

Expected<Plan> make_plan(const Problem& problem, Device device, const Options& options) {
  Status s = check_device(device);
  if (s.ok()) s = check_problem(problem);
  if (s.ok()) s = check_options(options);
  if (!s.ok()) return s;
  const Plan plan{problem, device, options, {}, {}};
  return device.kind == Device::Kind::kCuda ? cuda_plan(plan) : cpu_plan(plan);
}

std::vector<std::string> kernel_names(Device device) {
  std::vector<std::string> names;
  if (device.kind == Device::Kind::kCpu)
    for (const cpu::KernelRow& row : cpu::kernel_table()) names.emplace_back(row.name);
  else
    names.emplace_back(cuda::kForwardKernel);
  return names;
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const cpu::Tier& tier : cpu::usable_tiers()) names.emplace_back(tier.name);
  return names;
}

}  // namespace tilewise
