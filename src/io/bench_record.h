// The one schema of every benchmark in the project: a JSON object a line, appended to a file. Field
// by field in bench/README.md.
#pragma once

#include <optional>
#include <string>

#include "tilewise/problem.hpp"
#include "tilewise/status.hpp"

namespace tilewise::io {

struct BenchRecord {
  std::string pass;  // "fwd", "bwd" or "decode"
  Problem problem;
  std::string device;  // the model's name; "CPU ..." for a processor
  int threads = 1;
  std::string impl = "tilewise";  // or a peer: "standard", "torch", "cudnn", "fa2", ...
  std::string kernel;
  double ms_median = 0;
  double flops = 0;                        // nominal, for tflops
  std::optional<double> ceiling_tflops;    // measured in the same run
  std::optional<double> peak_extra_bytes;  // beyond inputs and outputs
};

// The line, without its end.
std::string to_json_line(const BenchRecord& record);

// One write at the end of the file, so that concurrent benchmarks don't mix their lines. Errors:
// kInvalidArgument with the path and the system's reason.
Status append_record(const std::string& path, const BenchRecord& record);

}  // namespace tilewise::io
