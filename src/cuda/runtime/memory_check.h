// What only the driver can tell of a caller's tensors: whose memory they are.
#pragma once

#include <span>

#include "cuda/runtime/driver.h"
#include "tilewise/attention.hpp"

namespace tilewise::cuda {

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

// An empty tensor may be given as null, without a shape.
inline bool has_numbers(const Tensor& t) {
  return t.given() && t.elements() > 0;
}

// kInvalidArgument for host memory or another device's; tensors that are not given or empty pass.
Status check_memory(const Driver& driver, const DeviceContext& device,
                    std::span<const NamedTensor> tensors);

// kUnsupported for a tensor that TMA or 16-byte accesses can't address.
Status check_addressable(std::span<const NamedTensor> tensors);

// kUnsupported for cu_seqlens and seqused that don't lie end to end.
Status check_lengths(const Inputs& in);

}  // namespace tilewise::cuda
