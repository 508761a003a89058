// From flags to a problem: reads the tensors that they name, rounds them, and derives every size.
#pragma once

#include <vector>

#include "flags.h"
#include "io/host_tensor.h"
#include "tilewise/attention.hpp"

namespace tilewise::tools {

struct Loaded {
  Problem problem;
  Inputs in;  // views of `owned`
  std::vector<io::HostTensor> owned;
};

// Tensors when --q is there, otherwise sizes; then only the index tensors are in `in`. Errors name
// the flag, its value and what is accepted. What the library checks itself (monotonic cu_seqlens,
// the shapes of bias, alibi and sink, ...) is left to it.
Expected<Loaded> load_problem(const ProblemFlags& flags);

// One more tensor, rounded to `as`. An empty path gives a tensor that is not given().
Expected<io::HostTensor> load_numbers(const char* flag, const std::string& path, DType as);

}  // namespace tilewise::tools
