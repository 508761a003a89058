// Standard attention carried out in the input dtype, as a framework's eager mode would: every
// tensor operation accumulates in float32 and its result is rounded to the input dtype before the
// next one reads it. This is the yardstick of the accuracy rule, not an oracle. LSE is kept in
// float32.
#pragma once

#include "reference/reference.h"

namespace tilewise::reference {

ForwardResult low_forward(const Problem& problem, const Inputs& in);
BackwardResult low_backward(const Problem& problem, const Inputs& in, const Tensor& d_o,
                            const Tensor& d_lse);

}  // namespace tilewise::reference
