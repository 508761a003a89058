// The functions that a compiled JAX program calls, one for each pass.
//
// Attributes: `spec`, the problem (spec.h); `given`, a bit for each of the ten inputs that is an
// argument, in the order of Inputs; `seed`. Arguments: the given inputs, and for the backward O,
// LSE, dO, dLSE. Results: O and LSE, or dQ, dK, dV and dBias and dSink where their input is given;
// on a GPU the workspace comes last.
#pragma once

#include "xla_ffi.h"

namespace tilewise::python {

xla::Error* jax_forward(xla::CallFrame* frame);
xla::Error* jax_backward(xla::CallFrame* frame);

}  // namespace tilewise::python
