// A named problem and how its tensors are to be filled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/buffer.h"
#include "tilewise/problem.hpp"

namespace tilewise::reference {

// What Q, K and V hold, and dO too unless said otherwise. Every number is exact in the problem's
// dtype.
//   kNormal        N(0, 1)
//   kOutliers      N(0, 1), and one entry in a thousand N(0, 100) on top
//   kConstantRows  every row of Q, K and V of one value; dO is N(0, 1). In f32 a multiple of 1/8:
//   sums
//                  of products are exact, and logits reach sqrt(D) times 5 or so. In f16 and bf16
//                  N(0, 1), for Q and K divided by D^(1/4) so that logits stay N(0, 1): a row whose
//                  softmax is all but one-hot has gradients below what the rounding of O leaves.
//   kHugeLogits    rows of logits around +1e4 or -1e4. Keys of one row of logits are equal, or at
//                  least 45 apart: which keys win decides the softmax, not the last bit of a logit
//                  (whose step is 1e-3 in f32). Bias is constant along a row. Not with ALiBi.
enum class InputKind : std::uint8_t { kNormal, kOutliers, kConstantRows, kHugeLogits };

constexpr const char* name_of(InputKind kind) {
  switch (kind) {
    case InputKind::kNormal:
      return "normal";
    case InputKind::kOutliers:
      return "outliers";
    case InputKind::kConstantRows:
      return "constant-rows";
    case InputKind::kHugeLogits:
      return "huge-logits";
  }
  return "?";
}

// The index tensors of a varlen problem, each empty unless the problem asks for it.
struct Lengths {
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv;
};

struct Case {
  std::string name;
  Problem problem;
  Lengths lengths;
  InputKind kind = InputKind::kNormal;
  Layout layout = Layout::kDense;
  bool d_lse = false;        // a gradient arrives through LSE
  bool hiding_bias = false;  // a fifth of the bias is -inf
};

}  // namespace tilewise::reference
