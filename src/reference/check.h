// Holds a kernel against the reference under the accuracy rule: what `tilewise check` prints and
// what the test suite requires.
#pragma once

#include <functional>
#include <memory>
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

// O; dQ, dK, dV and what else is given.
Errors measure_output(const Problem& problem, const Oracle& oracle, const Outputs& out);
std::vector<Errors> measure_gradients(const Problem& problem, const Oracle& oracle,
                                      const Gradients& grads);
// LSE, if it is given, by its own bound.
std::vector<Verdict> judge_lse(const Oracle& oracle, const Outputs& out);

// A case with as many draws of its inputs as the rule needs to be more than luck: until each tensor
// has shown 4096 numbers, at most 8 to begin with. `adjust` may change the inputs of every draw by
// hand.
class Trial {
 public:
  using Adjust = std::function<void(Workload&)>;
  Trial(const Case& c, std::uint64_t seed, const Adjust& adjust = {});

  struct Draw {
    Draw(const Case& c, std::uint64_t seed, const Adjust& adjust);
    Workload work;
    Oracle oracle;
  };
  // Doubles the draws; false when there are enough of them. The rule compares two maxima, and where
  // a few rows make both (outliers, constant rows) their ratio settles only slowly.
  bool grow();

  Case c;
  std::vector<std::unique_ptr<Draw>> draws;

 private:
  void draw_up_to(std::int64_t count);
  std::uint64_t seed_;
  Adjust adjust_;
};

// Judges all draws together; where that fails, the trial grows and they are judged again, with the
// same bounds.
//
// What a kernel made of a trial. `failures` is empty when all is well; otherwise one line for each
// thing that is not: a status, a verdict, memory that was touched. `unsupported`: the kernel has no
// row for this problem.
struct Report {
  std::vector<std::string> failures;
  std::vector<Verdict> verdicts;
  bool unsupported = false;
};
// Where a plan runs. `run` does the forward and, where the plan has one, the backward, on host
// tensors; empty: the library's own, on the CPU.
struct Target {
  Device device;
  std::function<Status(const Plan&, const Inputs&, const Outputs&, const Gradients&)> run;
};
Report check(Trial& trial, const Options& options, const Target& target = {});

}  // namespace tilewise::reference
