// What only the driver can tell of a caller's tensors: whose memory they are.
#pragma once

#include <span>

#include "cuda/runtime/driver.h"
#include "tilewise/tensor.hpp"

namespace tilewise::cuda {

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

// kInvalidArgument for host memory or another device's; tensors that are not given or empty pass.
Status check_memory(const Driver& driver, const DeviceContext& device,
                    std::span<const NamedTensor> tensors);

// kUnsupported for a tensor that TMA or 16-byte accesses can't address.
Status check_addressable(std::span<const NamedTensor> tensors);

}  // namespace tilewise::cuda
