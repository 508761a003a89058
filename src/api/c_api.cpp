// The functions of tilewise.h: each converts, calls its C++ counterpart and turns what comes back
// into a status and this thread's message. No exception leaves.
#include "core/format.h"
#include "tilewise/tilewise.h"

#include <mutex>
#include <new>
#include <string>

#include "api/c_structs.h"
#include "tilewise/tilewise.hpp"

using namespace tilewise;

// The C enums are the C++ ones.
static_assert(TW_F32 == int(DType::kF32) && TW_F16 == int(DType::kF16) &&
              TW_BF16 == int(DType::kBF16) && TW_I32 == int(DType::kI32));
static_assert(TW_INVALID_ARGUMENT == int(StatusCode::kInvalidArgument) &&
              TW_UNSUPPORTED == int(StatusCode::kUnsupported) &&
              TW_OUT_OF_MEMORY == int(StatusCode::kOutOfMemory) &&
              TW_UNAVAILABLE == int(StatusCode::kUnavailable) &&
              TW_INTERNAL == int(StatusCode::kInternal));
static_assert(TW_CUDA == int(Device::Kind::kCuda) && TW_TOP_LEFT == int(Align::kTopLeft) &&
              TW_ALIBI_PER_BATCH_AND_HEAD == int(Alibi::kPerBatchAndHead));

struct tw_plan {
  Plan plan;
  mutable std::once_flag described;
  mutable std::string description;
};

namespace {

thread_local std::string last_error;

tw_status report(const Status& status) noexcept {
  if (status.ok()) return TW_OK;
  try {
    last_error = status.message();
  } catch (...) {
    last_error.clear();  // no memory for the message; the code still tells
  }
  return static_cast<tw_status>(status.code());
}

// Runs `body`, which returns a Status, and lets nothing through.
template <class Body>
tw_status guarded(Body&& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    last_error.assign("out of memory");  // short enough to need none
    return TW_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    return report({StatusCode::kInternal, e.what()});
  } catch (...) {
    return report({StatusCode::kInternal, "an unknown exception"});
  }
}

Status null_pointer(const char* name) {
  return invalid(format_text("{}: the pointer is null", name));
}

Expected<const PassPlan*> pass_of(const tw_plan* plan, std::int32_t pass) {
  if (!plan) return null_pointer("plan");
  if (pass == TW_FORWARD) return &plan->plan.forward;
  if (pass == TW_BACKWARD) return &plan->plan.backward;
  return invalid(format_text("pass is {}; accepted are TW_FORWARD ({}) and TW_BACKWARD ({})", pass,
                             int{TW_FORWARD}, int{TW_BACKWARD}));
}

tw_pass_info info_of(const PassPlan& pass) {
  tw_pass_info info = tw_pass_info_init();
  info.kernel = pass.kernel.c_str();
  info.isa = pass.isa.c_str();
  info.tile_q = pass.tile_q;
  info.tile_kv = pass.tile_kv;
  info.threads = pass.threads;
  info.refusals = static_cast<std::int32_t>(pass.passed_over.size());
  info.workspace_bytes = pass.workspace_bytes;
  info.flops = pass.flops;
  info.fast_memory_bytes = pass.io.fast_memory_bytes;
  info.least_bytes = pass.io.least_bytes;
  info.standard_bytes = pass.io.standard_bytes;
  info.fa1_bytes = pass.io.fa1_bytes;
  info.fa2_bytes = pass.io.fa2_bytes;
  return info;
}

// "a,b,c" in `out`, or null with the reason in last_error.
template <class Names>
const char* joined(std::string& out, Names&& names) noexcept {
  const tw_status status = guarded([&]() -> Status {
    out.clear();
    const Expected<std::vector<std::string>> list = names();
    if (!list.ok()) return list.status();
    for (const std::string& name : *list) out += (out.empty() ? "" : ",") + name;
    return {};
  });
  return status == TW_OK ? out.c_str() : nullptr;
}

}  // namespace

extern "C" {

const char* tw_version(void) {
  return TW_VERSION;
}

const char* tw_last_error(void) {
  return last_error.c_str();
}

tw_status tw_plan_create(const tw_problem* problem, int32_t device_kind, int32_t device_index,
                         const tw_options* options, tw_plan** plan) {
  if (plan) *plan = nullptr;
  return guarded([&]() -> Status {
    if (!plan) return null_pointer("plan");
    const Expected<Problem> p = read_problem(problem);
    if (!p.ok()) return p.status();
    const Expected<Device> device = read_device(device_kind, device_index);
    if (!device.ok()) return device.status();
    const Expected<Options> o = read_options(options);
    if (!o.ok()) return o.status();
    Expected<Plan> made = make_plan(*p, *device, *o);
    if (!made.ok()) return made.status();
    *plan = new tw_plan{std::move(*made), {}, {}};
    return {};
  });
}

void tw_plan_destroy(tw_plan* plan) {
  delete plan;
}

const char* tw_plan_describe(const tw_plan* plan) {
  const tw_status status = guarded([&]() -> Status {
    if (!plan) return null_pointer("plan");
    std::call_once(plan->described, [&] { plan->description = plan->plan.describe(); });
    return {};
  });
  return status == TW_OK ? plan->description.c_str() : nullptr;
}

tw_status tw_plan_pass(const tw_plan* plan, int32_t pass, tw_pass_info* info) {
  return guarded([&]() -> Status {
    const Expected<const PassPlan*> found = pass_of(plan, pass);
    if (!found.ok()) return found.status();
    if (!info) return null_pointer("info");
    const std::size_t size = info->struct_size;
    if (Status s = check_struct_size("tw_pass_info", size, sizeof *info); !s.ok()) return s;
    // What the caller's header knows is filled in; what only a newer one knows is zeroed.
    const tw_pass_info known = info_of(**found);
    std::memset(info, 0, size);
    std::memcpy(info, &known, std::min(size, sizeof known));
    info->struct_size = size;
    return {};
  });
}

tw_status tw_plan_refusal(const tw_plan* plan, int32_t pass, int32_t index, const char** kernel,
                          const char** reason) {
  return guarded([&]() -> Status {
    const Expected<const PassPlan*> found = pass_of(plan, pass);
    if (!found.ok()) return found.status();
    const auto& refusals = (*found)->passed_over;
    if (index < 0 || static_cast<std::size_t>(index) >= refusals.size())
      return invalid(format_text("index is {}; this pass has {} refusals", index, refusals.size()));
    if (!kernel || !reason) return null_pointer(kernel ? "reason" : "kernel");
    *kernel = refusals[index].kernel.c_str();
    *reason = refusals[index].reason.c_str();
    return {};
  });
}

tw_status tw_forward(const tw_plan* plan, const tw_inputs* in, const tw_outputs* out,
                     const tw_launch* launch) {
  return guarded([&]() -> Status {
    if (!plan) return null_pointer("plan");
    const Expected<Inputs> i = read_inputs(in);
    if (!i.ok()) return i.status();
    const Expected<Outputs> o = read_outputs(out);
    if (!o.ok()) return o.status();
    const Expected<Launch> l = read_launch(launch);
    if (!l.ok()) return l.status();
    return forward(plan->plan, *i, *o, *l);
  });
}

tw_status tw_backward(const tw_plan* plan, const tw_inputs* in, const tw_gradients* grads,
                      const tw_launch* launch) {
  return guarded([&]() -> Status {
    if (!plan) return null_pointer("plan");
    const Expected<Inputs> i = read_inputs(in);
    if (!i.ok()) return i.status();
    const Expected<Gradients> g = read_gradients(grads);
    if (!g.ok()) return g.status();
    const Expected<Launch> l = read_launch(launch);
    if (!l.ok()) return l.status();
    return backward(plan->plan, *i, *g, *l);
  });
}

const char* tw_kernel_names(int32_t device_kind, int32_t device_index) {
  thread_local std::string names;
  return joined(names, [&]() -> Expected<std::vector<std::string>> {
    const Expected<Device> device = read_device(device_kind, device_index);
    if (!device.ok()) return device.status();
    return kernel_names(*device);
  });
}

const char* tw_isa_names(void) {
  thread_local std::string names;
  return joined(names, []() -> Expected<std::vector<std::string>> { return isa_names(); });
}

}  // extern "C"
