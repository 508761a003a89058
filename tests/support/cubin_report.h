// What can be told of a GPU kernel without a GPU: NVRTC compiles it, ptxas reports, and the machine
// code shows which instructions are in it.
#pragma once

#include <string>

namespace tilewise::test {

// Why nothing can be compiled here; empty if it can.
std::string why_no_compiler();

struct KernelPromise {
  std::string name;  // shown when it is broken
  int threads = 0;   // of a CTA that has its multiprocessor to itself
  int products = 0;  // WGMMA instructions, at least
};

// Compiles, and expects: no spills, registers within what the CTA can have, products on the tensor
// cores, and neither serialized products nor ignored register budgets.
void expect_sound_kernel(const std::string& source, const KernelPromise& promise);

}  // namespace tilewise::test
