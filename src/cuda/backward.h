// Runs the backward of a plan for a CUDA device: checks what only the device can tell, finds the
// three kernels, fills their parameters and launches them. Allocates nothing on the device, never
// synchronizes.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise::cuda {

Status backward(const Plan& plan, const Inputs& in, const Gradients& grads, const Launch& launch);

}  // namespace tilewise::cuda
