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
// Gradients are sums that may cancel to nothing (one visible key: dQ = 0 whatever dO) and then have
// no relative error to speak of. Their `magnitude` is the same sum with every term positive:
// ||ref|| counts as at least 1/32 of its norm, and (2) allows r/32 of its maximum if that is more.
// And every backward starts from an O that was rounded to its dtype; that alone has been seen to
// exceed (2) by a factor of 3, for any kernel and any number of elements. So for gradients low is
// carried out from that O, too (RowSum in low.h), and the larger of the two errors is the
// yardstick.
//
// A maximum over a few numbers is a matter of luck, low's too. So results of small problems are
// judged together over several draws of the inputs: Errors of all draws are merged, then judged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::reference {

enum class Quantity : std::uint8_t { kOutput, kGradient };

struct Measured {
  const char* name = "";
  Tensor out;                      // any strides
  const std::vector<double>& ref;  // dense, in the order of out's indices
  const std::vector<double>& low;
  DType dtype = DType::kF32;  // of the problem's inputs
  Quantity quantity = Quantity::kOutput;
  // Of a gradient:
  const std::vector<double>* low_from_output = nullptr;
  const std::vector<double>* magnitude = nullptr;
};

// What was seen of one tensor, over one draw or several.
struct Errors {
  std::string name;
  std::string misplaced;        // which numbers are wrongly finite, infinite or NaN; empty: none
  std::string worst;            // the element with the largest error
  double max = 0, low_max = 0;  // |out - ref|, |low - ref|
  double magnitude_max = 0;
  double squares = 0, ref_squares = 0, magnitude_squares = 0;
  double unseen_squares = 0;  // what the output's smallest numbers cannot express
  double relative_bound = 0;  // r, or 3 r
  std::int64_t count = 0;

  void merge(const Errors& other);
};

struct Verdict {
  bool pass = false;
  double max_error = 0, max_allowed = 0;
  double norm_error = 0, norm_allowed = 0;  // relative; the error's own norm when ref is 0
  std::string text;  // one line: what was compared, the figures, and what failed
};

Errors measure(const Measured& m);
Verdict judge(const Errors& e);

// LSE is float32 whatever the inputs: each |lse - ref| <= 1e-5 + 2e-6 m, where m is |ref| or the
// largest sum of |terms| of a logit in this row (`magnitude`, may be empty), if that is more.
Verdict judge_lse(const Tensor& lse, const std::vector<double>& ref,
                  const std::vector<double>& magnitude);

}  // namespace tilewise::reference
