// A problem, device and options as one line of text, "batch=2 heads_q=8 ... kernel=auto": what the
// Python side caches plans by, and what a compiled JAX program carries.
#pragma once

#include <memory>
#include <string_view>

#include "tilewise/tilewise.hpp"

namespace tilewise::python {

// Errors: those of make_plan, and kInvalidArgument for a field that isn't known or can't be read.
Expected<std::shared_ptr<const Plan>> plan_of_spec(std::string_view spec);

}  // namespace tilewise::python
