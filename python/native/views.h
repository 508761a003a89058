// Tensors as the Python side hands them over: a tuple (address, dtype, device kind, device index,
// shape, strides in elements), PyTorch's own where exchange.h reads it, or None for a tensor that
// is not given.
#pragma once

#include <nanobind/nanobind.h>

#include "tilewise/tilewise.hpp"

namespace tilewise::python {

Tensor tensor_of(nanobind::handle view);

inline constexpr int kOperands = 10;

// (q, k, v, alibi_slopes, bias, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv), and
// (seed, offset) of the dropout.
Inputs inputs_of(nanobind::handle views, nanobind::handle dropout);

// (o, lse)
Outputs outputs_of(nanobind::handle views);

// (o, lse, d_o, d_lse, dq, dk, dv, dbias, dsink)
Gradients gradients_of(nanobind::handle views);

// A Python integer as a pointer.
void* address(nanobind::handle number);

// TypeError unless it is a tuple of `count`.
void expect_count(nanobind::handle tuple, int count);

// Raises the usual Python exception for a status that isn't ok, with its message.
void raise_unless_ok(const Status& status);

}  // namespace tilewise::python
