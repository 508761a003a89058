// Random inputs. Only what a kernel may read is written: rows past a sequence's used length keep
// what the memory held before (NaN in a Workload).
#pragma once

#include <cstdint>

#include "reference/case.h"
#include "tilewise/attention.hpp"

namespace tilewise::reference {

// Fills the tensors that `in` has, and dO and dLSE of `grads`; sets the dropout seed.
void fill(const Case& c, std::uint64_t seed, Inputs& in, const Gradients& grads);

}  // namespace tilewise::reference
