// Is a Problem one that makes sense? What every backend may rely on.
#pragma once

#include "tilewise/plan.hpp"

namespace tilewise {

Status check_problem(const Problem& problem);
Status check_options(const Options& options);

}  // namespace tilewise
