// Standard attention on a BLAS, the baseline that the papers compare with: S = scale Q K^T by
// sgemm, causal mask and row softmax in place, O = P V by sgemm, one head after another, the whole
// Sq x Sk matrix in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/attention.hpp"

namespace tilewise::bench {

// Which kernel OpenBLAS picked for this processor, and its version.
std::string blas_description();

// How the matrix gets its mask and its softmax.
enum class StandardKind {
  kEager,  // an operation at a time, each over the whole matrix, as a framework's eager mode does:
           // scale, mask, softmax into a second matrix
  kPlain,  // as the papers write it down: scale inside the product; then mask and softmax row by
           // row, in place
  kTuned,  // plain, but nothing is done for the hidden half except to set it to 0
};

class BlasAttention {
 public:
  // float32, no GQA, batch 1, full or causal. `threads` for the products and for the softmax.
  BlasAttention(const Problem& problem, StandardKind kind, int threads);

  void forward(const Inputs& in, const Outputs& out);
  double extra_bytes() const {
    return static_cast<double>((scores_.size() + probabilities_.size()) * sizeof(float));
  }

 private:
  // (row, how many of its keys are visible) for every row, over the threads.
  template <class Visit>
  void for_rows(Visit&& visit);
  void mask_and_softmax();

  Problem problem_;
  StandardKind kind_;
  int threads_;
  std::vector<float> scores_;         // (Sq, Sk)
  std::vector<float> probabilities_;  // (Sq, Sk), when they have a matrix of their own
};

// Wall time, or the processor time of the whole process: on a machine that others use too, the
// second leaves out what they took; with several threads it is no measure of speed.
enum class Clock { kWall, kCpu };
double seconds(Clock clock);

// FLOP/s of a large square sgemm, the ceiling that this run's other figures are held against.
double measure_sgemm_flops(int threads, Clock clock);

}  // namespace tilewise::bench
