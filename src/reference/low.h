// Standard attention carried out in the input dtype, as a framework's eager mode would: every
// tensor operation accumulates in float32 and its result is rounded to the input dtype before the
// next one reads it. This is the yardstick of the accuracy rule, not an oracle. LSE is kept in
// float32.
#pragma once

#include "reference/reference.h"

namespace tilewise::reference {

// Where the row sum of the softmax's backward, sum_j P_ij dP_ij, comes from: the graph's own
// softmax node, or dO . O with the O that the forward handed over in the output's dtype, which is
// all that a backward without the graph has.
enum class RowSum { kSoftmax, kOutput };

ForwardResult low_forward(const Problem& problem, const Inputs& in);
BackwardResult low_backward(const Problem& problem, const Inputs& in, const Tensor& d_o,
                            const Tensor& d_lse, RowSum row_sum);

}  // namespace tilewise::reference
