// Runs the forward of a plan for a CUDA device: checks what only the device can tell, finds the
// kernel, fills its parameters and launches. Allocates nothing on the device, never synchronizes.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise::cuda {

Status forward(const Plan& plan, const Inputs& in, const Outputs& out, const Launch& launch);

}  // namespace tilewise::cuda
