// tilewise._native: plans, and the forward and backward on the memory of any framework's tensors.
// Everything that a user sees is in Python; this is only the bridge.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "exchange.h"
#include "jax_call.h"
#include "seen.h"
#include "spec.h"
#include "tilewise/tilewise.h"
#include "views.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

using PlanPtr = std::shared_ptr<const Plan>;

// What Python calls a plan: the plan with its description's pieces as attributes.
struct PyPlan {
  PlanPtr plan;
};

PyPlan make(std::string_view spec) {
  const auto plan = plan_of_spec(spec);
  raise_unless_ok(plan.status());
  return {*plan};
}

// Where to run: (workspace address, bytes, stream), None for the stream that exchange.h tells. No
// tuple: no workspace but what the host's memory gives a CPU.
struct Room {
  Room(const Plan& plan, const PassPlan& pass, nb::handle launch)
      : own(plan.device.kind == Device::Kind::kCpu ? pass : PassPlan{}) {
    at = own.launch();
    if (plan.device.kind == Device::Kind::kCpu) return;
    nb::object stream = nb::none();
    if (!launch.is_none()) {
      const auto given = nb::cast<nb::tuple>(launch);
      at.workspace = address(given[0]);
      at.workspace_bytes = nb::cast<std::size_t>(given[1]);
      stream = given[2];
    }
    at.stream = stream.is_none() ? exchange_stream(plan.device.index) : address(stream);
  }
  Workspace own;
  Launch at;
};

// As in views.h: `inputs`, `dropout`, and `outputs` or `gradients`.
void run_forward(const PyPlan& self, nb::handle inputs, nb::handle dropout, nb::handle outputs,
                 nb::handle launch) {
  const Inputs in = inputs_of(inputs, dropout);
  const Outputs out = outputs_of(outputs);
  const Room room(*self.plan, self.plan->forward, launch);
  Status status;
  {
    const nb::gil_scoped_release others_may_run;
    status = forward(*self.plan, in, out, room.at);
  }
  raise_unless_ok(status);
}

void run_backward(const PyPlan& self, nb::handle inputs, nb::handle dropout, nb::handle gradients,
                  nb::handle launch) {
  const Inputs in = inputs_of(inputs, dropout);
  const Gradients grads = gradients_of(gradients);
  const Room room(*self.plan, self.plan->backward, launch);
  Status status;
  {
    const nb::gil_scoped_release others_may_run;
    status = backward(*self.plan, in, grads, room.at);
  }
  raise_unless_ok(status);
}

nb::dict pass_dict(const PassPlan& pass) {
  nb::dict out;
  out["kernel"] = pass.kernel;
  out["isa"] = pass.isa;
  out["tile_q"] = pass.tile_q;
  out["tile_kv"] = pass.tile_kv;
  out["threads"] = pass.threads;
  out["workspace_bytes"] = pass.workspace_bytes;
  out["flops"] = pass.flops;
  out["least_bytes"] = pass.io.least_bytes;
  out["standard_bytes"] = pass.io.standard_bytes;
  out["fa1_bytes"] = pass.io.fa1_bytes;
  out["fa2_bytes"] = pass.io.fa2_bytes;
  nb::dict refusals;
  for (const Refusal& r : pass.passed_over) refusals[r.kernel.c_str()] = r.reason;
  out["passed_over"] = refusals;
  return out;
}

}  // namespace
}  // namespace tilewise::python

NB_MODULE(_native, m) {
  using namespace tilewise;
  using namespace tilewise::python;
  nb::set_leak_warnings(false);  // plans that Python still caches at its end are no leak
  m.attr("version") = TW_VERSION;
  nb::class_<PyPlan>(m, "Plan")
      .def("describe", [](const PyPlan& p) { return p.plan->describe(); })
      .def_prop_ro("forward", [](const PyPlan& p) { return pass_dict(p.plan->forward); })
      .def_prop_ro("backward", [](const PyPlan& p) { return pass_dict(p.plan->backward); })
      .def_prop_ro("forward_bytes", [](const PyPlan& p) { return p.plan->forward.workspace_bytes; })
      .def_prop_ro("backward_bytes",
                   [](const PyPlan& p) { return p.plan->backward.workspace_bytes; })
      .def("run_forward", &run_forward, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("run_backward", &run_backward, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("make_plan", &make);
  m.def("use_exchange", &use_exchange);
  m.def("find_seen", &find_seen);
  m.def("remember_seen", &remember_seen);
  m.def("kernel_names", [](bool cuda) {
    return kernel_names({cuda ? Device::Kind::kCuda : Device::Kind::kCpu, 0});
  });
  m.def("isa_names", &isa_names);
  m.def("jax_targets", [] {
    nb::dict out;
    out["tilewise_forward"] = nb::capsule(reinterpret_cast<void*>(&jax_forward));
    out["tilewise_backward"] = nb::capsule(reinterpret_cast<void*>(&jax_backward));
    return out;
  });
}
