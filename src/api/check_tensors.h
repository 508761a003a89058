// Validation of everything a caller hands to forward and backward, before the first byte is
// touched. Messages name the tensor, what it is and what the plan expects.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise {

Status check_inputs(const Plan& plan, const Inputs& in);
// These two also hold what is written apart from what is read.
Status check_outputs(const Plan& plan, const Inputs& in, const Outputs& out);
Status check_gradients(const Plan& plan, const Inputs& in, const Gradients& grads);
Status check_launch(const PassPlan& pass, const Launch& launch);

}  // namespace tilewise
