// What attention writes, allocated for a problem: outputs and gradients, dense.
#pragma once

#include <vector>

#include "gpu_run.h"
#include "io/host_tensor.h"
#include "tilewise/attention.hpp"

namespace tilewise::tools {

enum class Passes { kForward, kForwardAndBackward };

struct Results {
  io::HostTensor o, lse;
  io::HostTensor dq, dk, dv, dbias, dsink;  // only with kForwardAndBackward

  Outputs outputs() const { return {o.view(), lse.view()}; }
  Gradients gradients(const Tensor& d_o, const Tensor& d_lse) const;
};

// `in` must be of the problem; every page of the results is touched, so that peak memory measured
// later is the kernel's alone.
Expected<Results> allocate_results(const Problem& problem, const Inputs& in, Passes passes);

// Milliseconds of one call; on a GPU without the copies, which it makes, and without compilation.
using Timed = GpuTimed;
double median(std::vector<double> values);  // of at least one
Timed time_forward(const Plan& plan, const Inputs& in, const Outputs& out);
Timed time_backward(const Plan& plan, const Inputs& in, const Gradients& grads);

}  // namespace tilewise::tools
