// Is a Problem one that makes sense? What every backend may rely on.
#pragma once

#include "tilewise/plan.hpp"

namespace tilewise {

// The CPU is one; which GPUs there are is asked when one is to run.
Status check_device(Device device);
Status check_problem(const Problem& problem);
Status check_options(const Options& options);

}  // namespace tilewise
