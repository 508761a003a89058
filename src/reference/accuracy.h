// The accuracy rule, one for every kernel. With ref in float64 on the rounded inputs and low as an
// eager framework would compute in the input dtype, a result passes when
//
//   1. it is infinite or NaN exactly where ref is,
//   2. max|out - ref| <= 2 max|low - ref| + 1e-5, and
//   3. ||out - ref|| <= r ||ref||, r = 2e-6 (f32), 1e-3 (f16), 8e-3 (bf16); gradients 3 r.
//
// What the smallest numbers of the output's dtype cannot express does not count: half of f16's
// smallest step, and below 2^-120 in f32 and bf16. Two facts about gradients are part of the rule,
// since no method that keeps to the interface could meet it otherwise:
//   - A gradient may cancel to nothing (one visible key: dQ = 0 whatever dO). Where the caller
//   gives
//     the magnitude, the same sums with every term positive, ||ref|| counts as at least 1/32 of it.
//   - A backward starts from LSE in float32, so it knows a probability to a relative |LSE| 2^-24
//   and
//     no better. From |LSE| ~ 25 in f32 on this exceeds 3 r: r becomes max|LSE| 2^-22, and (2)
//     allows that much of max|ref| more.
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
  const std::vector<double>* magnitude = nullptr;  // of a gradient
  double max_lse = 0;                              // of a gradient: the largest finite |LSE|
};

struct Verdict {
  bool pass = false;
  double max_error = 0, max_allowed = 0;
  double norm_error = 0, norm_allowed = 0;  // relative; the error's own norm when ref is 0
  std::string text;  // one line: what was compared, the figures, and what failed
};

Verdict judge(const Judged& j);

// LSE is float32 whatever the inputs: each |lse - ref| <= 1e-5 + 1e-6 |ref|. `text` as above.
Verdict judge_lse(const Tensor& lse, const std::vector<double>& ref);

}  // namespace tilewise::reference
