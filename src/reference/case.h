// A named problem and how its tensors are to be filled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/buffer.h"
#include "tilewise/problem.hpp"

namespace tilewise::reference {

// What Q, K, V and dO hold. Every number is exact in the problem's dtype.
//   kNormal        N(0, 1)
//   kOutliers      N(0, 1), and one entry in a thousand N(0, 100) on top
//   kConstantRows  every row of one value, a multiple of 1/8
//   kHugeLogits    rows of logits around +-1e4. Entries are small integers times 32, so products
//   are
//                  exact in f32 and logits of one row are equal or at least 45 apart: the softmax
//                  is a matter of which key wins, not of the last bit of a logit. Bias is constant
//                  along a row. Not with ALiBi.
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
