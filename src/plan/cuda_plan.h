// The CUDA backend's half of make_plan. Pure: neither a device nor a driver is needed to plan.
#pragma once

#include "tilewise/plan.hpp"

namespace tilewise {

// kUnsupported when the problem has no forward kernel; the backward has none yet.
Expected<Plan> cuda_plan(Plan plan);

}  // namespace tilewise
