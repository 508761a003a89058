// Standard attention in float64, the oracle: builds the whole score matrix, derives its masks by
// itself from the words of docs/semantics.md, and shares nothing with the kernels but the dropout
// generator (which has known-answer tests of its own).
#pragma once

#include <vector>

#include "tilewise/attention.hpp"

namespace tilewise::reference {

// Dense and row-major, shaped as Outputs: o (B, Sq, Hq, Dv) or (total_q, Hq, Dv), lse (B, Hq, Sq)
// or (Hq, total_q).
struct ForwardResult {
  std::vector<double> o, lse;
};

// Shaped as Q, K, V, bias and sink; dbias and dsink are empty when the problem has none.
struct BackwardResult {
  std::vector<double> dq, dk, dv, dbias, dsink;
};

// The inputs are taken as they are (f16 and bf16 exactly). O(Sq x Sk) memory for each head.
ForwardResult forward(const Problem& problem, const Inputs& in);

// Shaped as LSE: the largest sum of |terms| among the logits that a row sees, which is what the
// rounding of a logit is relative to. 0 for a row that sees no key.
std::vector<double> logit_magnitude(const Problem& problem, const Inputs& in);

// Recomputes the forward in float64. `d_lse` may be not given.
BackwardResult backward(const Problem& problem, const Inputs& in, const Tensor& d_o,
                        const Tensor& d_lse);

// As the kernels take it: rows whose LSE is that of a wider softmax (docs/semantics.md) keep to it
// and to its O; the others, whose LSE is their own rounded to f32, are recomputed.
BackwardResult backward_given(const Problem& problem, const Inputs& in, const Gradients& grads);

// The same sums with every term made positive: how large the numbers are that cancel in a gradient.
BackwardResult backward_magnitude(const Problem& problem, const Inputs& in, const Tensor& d_o,
                                  const Tensor& d_lse);

}  // namespace tilewise::reference
