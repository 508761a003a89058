// Every kernel row on every SIMD tier of this machine, and a case held against the reference on all
// of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/check.h"
#include "support/seed.h"

namespace tilewise_test {

struct Row {
  std::string kernel, isa;

  std::string name() const { return kernel + "/" + isa; }
  tilewise::Options options(int threads = 2) const;
};

// "reference", which is plain loops, comes once and not for each tier.
std::vector<Row> all_rows();

// Runs the case on all rows; each failure names row and case. `adjust` changes inputs by hand.
void expect_rows_pass(const tilewise::reference::Case& c,
                      const tilewise::reference::Trial::Adjust& adjust = {});

// Plan, workspace and run in one; GTest failures when a status is not ok.
void run_forward(const tilewise::Problem& p, const tilewise::Options& options,
                 const tilewise::Inputs& in, const tilewise::Outputs& out);
void run_backward(const tilewise::Problem& p, const tilewise::Options& options,
                  const tilewise::Inputs& in, const tilewise::Gradients& grads);

}  // namespace tilewise_test
