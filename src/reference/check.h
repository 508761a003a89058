// Holds a kernel against the reference under the accuracy rule: what `tilewise check` prints and
// what the test suite requires.
#pragma once

#include <string>
#include <vector>

#include "reference/accuracy.h"
#include "reference/reference.h"
#include "reference/workload.h"

namespace tilewise::reference {

// Everything a kernel's results are compared with. Costs O(Sq x Sk) for each head, once for all
// kernels.
struct Oracle {
  ForwardResult ref, low;
  std::vector<double> logit_magnitude;
  BackwardResult grad_ref, grad_low, grad_low_from_output, grad_magnitude;
};
enum class Passes : std::uint8_t { kForward, kForwardAndBackward };
Oracle make_oracle(const Problem& problem, const Inputs& in, const Gradients& grads, Passes passes);

// One verdict for each tensor that is given.
std::vector<Verdict> judge_forward(const Problem& problem, const Oracle& oracle,
                                   const Outputs& out);
std::vector<Verdict> judge_backward(const Problem& problem, const Oracle& oracle,
                                    const Gradients& grads);

// Runs a case on a kernel, outputs poisoned first. Empty when all is well; otherwise one line for
// each thing that is not: a status, a verdict, memory that was touched. `unsupported` is set when
// the options name a kernel that has no such row.
struct Report {
  std::vector<std::string> failures;
  std::vector<Verdict> verdicts;
  bool unsupported = false;
};
Report check(const Case& c, Workload& w, const Oracle& oracle, const Options& options);

}  // namespace tilewise::reference
