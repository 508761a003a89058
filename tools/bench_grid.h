// The grid that `tilewise bench` runs, and one point of it measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tilewise/attention.hpp"

namespace tilewise::tools {

struct BenchGrid {
  std::vector<std::string> passes = {"fwd"};
  std::vector<DType> dtypes = {DType::kF32};
  std::vector<std::string> masks = {"full", "causal"};  // or "LEFT:RIGHT", a window
  std::vector<std::int64_t> head_dims = {64};
  std::vector<std::int64_t> seqs = {512, 1024, 2048, 4096};
  std::vector<std::string> kernels = {"auto"};
  std::vector<int> threads = {0};
  std::int64_t batch = 1, heads_q = 1, heads_kv = 0;  // 0: heads_q
  std::int64_t head_dim_v = 0;                        // 0: as head_dim
  int repeat = 7;
  std::string isa = "auto";
  Device device;
};

struct BenchPoint {
  std::string pass;
  Problem problem;
  Device device;
};

// Every pass x dtype x mask x D x S, or what is wrong with a name.
Expected<std::vector<BenchPoint>> points_of(const BenchGrid& grid);

struct Measured {
  std::string kernel;  // that ran
  std::string isa;
  int threads = 1;
  double ms_median = 0;
  std::size_t workspace_bytes = 0;
  std::optional<double> peak_extra_bytes;
};

// One result for each of `options`, timed in turn, so that a machine that changes its mind does so
// to all of them. Random tensors; the first run of each is not counted.
Expected<std::vector<Measured>> measure(const BenchPoint& point,
                                        const std::vector<Options>& options, int repeat);

}  // namespace tilewise::tools
