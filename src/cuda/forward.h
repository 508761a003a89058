// Runs the forward of a plan for a CUDA device: checks what only the device can tell, finds the
// kernel, fills its parameters and launches. Allocates nothing on the device, never synchronizes.
#pragma once

#include <optional>

#include "tilewise/attention.hpp"

namespace tilewise::cuda {

// Launches what this thread has launched before on these very tensors, with no check but that they
// are the same; nothing if it hasn't.
std::optional<Status> forward_again(const Plan& plan, const Inputs& in, const Outputs& out,
                                    const Launch& launch);

// For tensors that were checked against the plan.
Status forward(const Plan& plan, const Inputs& in, const Outputs& out, const Launch& launch);

}  // namespace tilewise::cuda
