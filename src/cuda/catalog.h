// Which kernels there are to compile ahead of time: those of one problem, or of every row of the
// table with the masks, head dims and modifiers that models use. A kernel is its source.
#pragma once

#include <string>
#include <vector>

#include "tilewise/plan.hpp"

namespace tilewise::cuda {

struct KernelSource {
  std::string name;  // "forward d128 bf16 causal varlen 128x128"
  std::string source;
};

// What a plan of `problem` launches. Empty for a problem that has no kernel.
std::vector<KernelSource> kernels_of(const Problem& problem, const Options& options);

// Each once.
std::vector<KernelSource> usual_kernels();

}  // namespace tilewise::cuda
