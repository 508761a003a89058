// A plan for a GPU run on tensors in host memory: copied in, run, timed, copied out.
#pragma once

#include <vector>

#include "gpu_memory.h"
#include "tilewise/attention.hpp"

namespace tilewise::tools {

// Copies of a call's host tensors in device memory, with the same strides and gaps. Tensors that
// share bytes share them there too. Memory around each is guarded.
class DeviceCopy {
 public:
  static Expected<DeviceCopy> make(int device, const Inputs& in, const Outputs& out,
                                   const Gradients& grads);

  const Inputs& in() const { return in_; }
  const Outputs& out() const { return out_; }
  const Gradients& grads() const { return grads_; }

  // Brings back what was written. kInternal when memory around a tensor was.
  Status copy_out() const;

 private:
  struct Range {
    std::uintptr_t begin, end;  // in host memory
    DeviceBuffer buffer;
    std::size_t offset;  // of begin in the buffer
  };
  Status copy_range(Range& range) const;
  Tensor moved(const Tensor& host, int device) const;

  std::vector<Range> ranges_;
  std::vector<Tensor> written_;
  Inputs in_;
  Outputs out_;
  Gradients grads_;
};

struct GpuTimed {
  Status status;
  double ms = 0;
};

// The backward where `pass` is the plan's. Compiles and warms up first, then times enough runs in a
// row for a millisecond; the results are those of the last.
GpuTimed run_on_gpu(const Plan& plan, const PassPlan& pass, const Inputs& in, const Outputs& out,
                    const Gradients& grads);

// Forward and, where the plan has one, backward, once and without timing.
Status run_passes_on_gpu(const Plan& plan, const Inputs& in, const Outputs& out,
                         const Gradients& grads);

}  // namespace tilewise::tools
