// Tensor maps: what TMA knows of a tensor. Built by the driver.
#pragma once

#include "cuda/device/tensor_map.h"
#include "cuda/runtime/driver.h"
#include "tilewise/tensor.hpp"

namespace tilewise::cuda {

// The rows of 64 columns that one copy moves, with the 128-byte swizzle. With packed heads row r is
// head r % heads of sequence row r / heads.
struct TmaBox {
  int rows = 0;
  int packed_heads = 1;
};

// Null when TMA can address the tensor, (B, S, H, D) or packed (total, H, D), else the rule that it
// breaks.
const char* why_not_tma(const Tensor& tensor);

// Coordinates in a kernel: column, row, head, batch (0 for a packed tensor); with packed heads
// column, head, row, batch.
Expected<TensorMap> make_tensor_map(const Driver& driver, const Tensor& tensor, TmaBox box);

}  // namespace tilewise::cuda
