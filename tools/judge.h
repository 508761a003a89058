// The accuracy rule on everything that a run gave.
#pragma once

#include <vector>

#include "reference/check.h"

namespace tilewise::tools {

// For O, LSE and, unless `grads` is null, dQ, dK, dV and what else is given; in this order.
std::vector<reference::Verdict> judge_run(const Problem& problem, const reference::Oracle& oracle,
                                          const Outputs& out, const Gradients* grads);

}  // namespace tilewise::tools
