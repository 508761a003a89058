// The three ways to check: random tensors, given tensors, the grid.
#pragma once

#include <cstdint>
#include <string>

#include "check_log.h"
#include "flags.h"
#include "reference/case.h"

namespace tilewise::tools {

struct CheckFlags {
  ProblemFlags problem;
  RunFlags run;      // kernel and isa may be "all"
  std::string dout;  // with given tensors; empty: N(0, 1)
  reference::InputKind kind = reference::InputKind::kNormal;
  std::uint64_t input_seed = 0;
  bool grid = false;
  bool quick = false;
  std::string filter;
};

// Errors are of the problem or the tensors; what a kernel does wrong goes to the log.
Status check_random(const CheckFlags& flags, CheckLog& log);
Status check_tensors(const CheckFlags& flags, CheckLog& log);
Status check_grid(const CheckFlags& flags, CheckLog& log);

}  // namespace tilewise::tools
