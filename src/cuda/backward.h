// Runs the backward of a plan for a CUDA device: checks what only the device can tell, finds the
// three kernels, fills their parameters and launches them. Allocates nothing on the device, never
// synchronizes.
#pragma once

#include <optional>

#include "tilewise/attention.hpp"

namespace tilewise::cuda {

// A call with the tensors and the workspace of an earlier one, which need no checks; none if there
// was no such call.
std::optional<Status> backward_again(const Plan& plan, const Inputs& in, const Gradients& grads,
                                     const Launch& launch);

Status backward(const Plan& plan, const Inputs& in, const Gradients& grads, const Launch& launch);

}  // namespace tilewise::cuda
