// What a kernel writes may not lie on what it reads, nor on anything else that it writes: results
// would depend on the order of work. Slices of one buffer that interleave are fine.
#pragma once

#include <span>

#include "tilewise/attention.hpp"

namespace tilewise {

struct PlacedTensor {
  const char* name;
  const Tensor& tensor;
};

// Whether an element of one is known to share bytes with an element of the other. Exact for tensors
// of the same strides and for dense ones; where strides are neither, only a common first element
// counts.
bool overlap(const Tensor& a, const Tensor& b);

Status check_overlap(std::span<const PlacedTensor> written, std::span<const PlacedTensor> read);

}  // namespace tilewise
