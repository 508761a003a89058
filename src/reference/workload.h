// A case with tensors: inputs in the case's memory layout, outputs and gradients poisoned with NaN.
// Everything that must not be read (rows past a sequence's end, gaps, margins) holds NaN.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "reference/case.h"
#include "tilewise/attention.hpp"

namespace tilewise::reference {

class Workload {
 public:
  Workload(const Case& c, std::uint64_t seed);
  Workload(const Workload&) = delete;

  Inputs in;
  Outputs out;
  Gradients grads;  // o and lse are out's

  void poison_outputs();    // O and LSE
  void poison_gradients();  // dQ, dK, dV, dbias, dsink
  // To be called after a test has changed an input by hand.
  void seal_inputs();
  // Empty, or what a kernel touched that it must not: an input, or memory around an output.
  std::string damage() const;
  // Whether no output and no gradient was written at all: every byte is poison still.
  bool untouched() const;

 private:
  struct Owned {
    Buffer buffer;
    std::vector<Tensor> views;  // as allocated, whatever a test points its tensors at
    const char* name;
  };
  using Group = std::deque<Owned>;

  void allocate_inputs(const Case& c);
  void allocate_outputs(const Case& c);
  void add(Group& group, const char* name, const TensorSpec& spec, Tensor* view);
  void add_fused(Group& group, const char* name, const std::vector<TensorSpec>& specs,
                 const std::vector<Tensor*>& views);

  Layout layout_;
  Group inputs_, outputs_, gradients_;
};

}  // namespace tilewise::reference
