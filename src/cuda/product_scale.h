// What products of Q and K are multiplied with to become scores.
//
// WGMMA cuts off what doesn't fit its float32 accumulator, always towards 0, and where the terms of
// a score are of one sign that adds up. Products of f16 numbers have 22 bits: for each number of D
// they lose up to 1e-8 of the score, half of that on average (docs/forward_sm90.md has the
// measurement), which is given back here. Those of bf16 have 16 bits and lose a third of it, well
// within what the LSE may be off.
#pragma once

#include <cmath>

#include "tilewise/problem.hpp"

namespace tilewise::cuda {

inline float scale_of(const Problem& p) {
  return p.scale.value_or(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
}

inline float product_scale(const Problem& p) {
  constexpr float kLossOfF16 = 4.5e-9f;
  const float loss = p.dtype == DType::kF16 ? kLossOfF16 * static_cast<float>(p.head_dim) : 0.0f;
  return scale_of(p) * (1.0f + loss);
}

}  // namespace tilewise::cuda
