// The online softmax (Milakov and Gimelshein 2018; Dao et al. 2022, section 3.1): a row's running
// maximum and the sum of exp(s - max), and the merge of two partial rows.
// No finite number stands for -inf: a row that has seen nothing is (-inf, 0).
#pragma once

#include "core/base.h"

namespace tilewise {

struct SoftmaxState {
  float max;  // in the units the kernel keeps its scores in
  float sum;
};

inline constexpr float kMinusInf = __builtin_bit_cast(float, 0xFF800000u);

// What to subtract before the exponential: the maximum, or 0 for a row that has seen nothing, where
// -inf - (-inf) would be NaN.
TW_HD constexpr float softmax_shift(float max) {
  return max == kMinusInf ? 0.0f : max;
}

// The weights that two partial results get when they become one. `a` and `b` are LSE values in
// natural log; (-inf, -inf) gives weights 0 and stays -inf. exp and log come from the caller, since
// host and device have different ones.
struct MergeWeights {
  float a, b;
  float lse;
};

template <class Exp, class Log>
TW_HD MergeWeights merge_lse(float a, float b, Exp exp, Log log) {
  if (a == kMinusInf && b == kMinusInf) return {0.0f, 0.0f, kMinusInf};
  const float top = max_of(a, b);  // a NaN on either side reaches the sum
  const float ea = exp(a - top), eb = exp(b - top), sum = ea + eb;
  return {ea / sum, eb / sum, top + log(sum)};
}

}  // namespace tilewise
