// One layer's Q, K and V, and any kernel run on them and held against float64.
#pragma once

#include <string>
#include <vector>

#include "load.h"
#include "reference/check.h"
#include "results.h"

namespace tilewise::tools {

struct DemoRow {
  Plan plan;
  std::string kernel;
  DType dtype = DType::kF32;
  double forward_ms = 0, backward_ms = 0;    // medians
  std::size_t workspace_bytes = 0;           // of the greedier pass
  std::vector<reference::Verdict> verdicts;  // O, LSE, dQ, dK, dV
  bool pass = false;
};

class DemoLayer {
 public:
  // Rounded to `dtype`; dO is N(0, 1).
  static Expected<DemoLayer> load(const std::string& path, const std::string& layer, DType dtype);

  Expected<DemoRow> run(const std::string& kernel, int repeat);

 private:
  Loaded loaded_;
  io::HostTensor d_o_;
  Results results_;
  reference::Oracle oracle_;
  bool has_oracle_ = false;
};

}  // namespace tilewise::tools
