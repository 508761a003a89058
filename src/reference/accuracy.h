// The accuracy rule, one for every kernel. With ref in float64 on the rounded inputs and low as an
// eager framework would compute in the input dtype, a result passes when
//
//   1. it is infinite or NaN exactly where ref is,
//   2. max|out - ref| <= 2 max|low - ref| + 1e-5, and
//   3. ||out - ref|| <= r ||ref||, r = 2e-6 (f32), 1e-3 (f16), 8e-3 (bf16); gradients 3 r.
//
// What the smallest numbers of the output's dtype cannot express does not count: half of f16's
// smallest step, and below 2^-120 in f32 and bf16.
//
// A gradient may cancel to nothing (one visible key: dQ = 0 whatever dO), and then has no relative
// error to speak of. So its `magnitude`, the same sums with every term positive, counts too: 1/32
// of its norm is the least that ||ref|| is taken for, and r/32 of its maximum is allowed in (2) if
// that is more. And a backward starts from an O that was rounded on the way, so low is carried out
// both ways (RowSum in low.h) and the larger error is the yardstick.
#pragma once

#include <string>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::reference {

enum class Quantity : std::uint8_t { kOutput, kGradient };

struct Judged {
  const char* name = "";
  Tensor out;                      // any strides
  const std::vector<double>& ref;  // dense, in the order of out's indices
  const std::vector<double>& low;
  DType dtype = DType::kF32;  // of the problem's inputs
  Quantity quantity = Quantity::kOutput;
  const std::vector<double>* low_from_output = nullptr;  // of a gradient
  const std::vector<double>* magnitude = nullptr;        // of a gradient
};

struct Verdict {
  bool pass = false;
  double max_error = 0, max_allowed = 0;
  double norm_error = 0, norm_allowed = 0;  // relative; the error's own norm when ref is 0
  std::string text;  // one line: what was compared, the figures, and what failed
};

Verdict judge(const Judged& j);

// LSE is float32 whatever the inputs: each |lse - ref| <= 1e-5 + 2e-6 m, where m is |ref| or the
// largest sum of |terms| of a logit in this row (`magnitude`, may be empty), if that is more.
Verdict judge_lse(const Tensor& lse, const std::vector<double>& ref,
                  const std::vector<double>& magnitude);

}  // namespace tilewise::reference
