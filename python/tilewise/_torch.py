"""PyTorch's eager calls, past the dispatcher.

An ordinary call goes straight to the native module, or through one autograd.Function: dispatching 26
arguments in Python costs more than a short attention. Whatever a compiler, mode or transform watches
goes by the operators (_torch_operators.py).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arrays import Torch
from ._call import Incoming, Operands, Planned, Settings, backward, forward, planned
from ._torch_operators import (GRADED, Transformed, as_int64, check, drawn_seed, functorch_level,
                               is_compiling, no_second_derivative, readable, transformed)

_DENSE = torch.contiguous_format
_CLASSES = (Tensor, torch.nn.Parameter)  # exactly these hold their own memory
if _native.use_exchange(*_CLASSES):
    Torch.read_natively = _CLASSES


def _forward(plan: Planned, operands: Operands, settings: Settings, seed: int,
             want_lse: bool) -> tuple:
    """(O, LSE or None); `forward` without what only other frameworks need."""
    if not Torch.read_natively:
        return forward(Torch, operands, settings, seed=seed, want_lse=want_lse)
    q, bytes_needed = operands.q, plan.forward_bytes
    shape, strides, *_ = plan.o
    o, lse = q.new_empty_strided(shape, strides), None  # new_empty takes a third longer
    if want_lse:
        shape, strides, *_ = plan.lse
        lse = q.new_empty_strided(shape, strides, dtype=torch.float32)
    plan.native.run_forward(operands, (seed, 0), (o, lse),
                            Torch.launch(q, bytes_needed) if bytes_needed else None)
    return o, lse


def _backward(plan: Planned, operands: Operands, settings: Settings, seed: int, incoming: tuple,
              want: Sequence[bool]) -> tuple:
    """(dQ, dK, dV, dBias or None, dSink or None); `backward`, likewise."""
    if not Torch.read_natively or type(incoming[2]) not in _CLASSES:
        return backward(Torch, operands, settings, Incoming(*incoming), seed=seed, want=want)
    q, k, v, _, bias, sink, *_ = operands
    grads = (torch.empty_like(q, memory_format=_DENSE), torch.empty_like(k, memory_format=_DENSE),
             torch.empty_like(v, memory_format=_DENSE),
             bias.new_empty(bias.shape, dtype=torch.float32) if want[0] else None,
             sink.new_empty(sink.shape) if want[1] else None)
    plan.native.run_backward(operands, (seed, 0), incoming + grads,
                             Torch.launch(q, plan.backward_bytes))
    return grads


class _Attention(torch.autograd.Function):
    """The operators' formula without the dispatcher. `call` is what `_forward` takes, and whether LSE
    is returned; `graded` are q, k, v, and bias and sink if there is one of them."""

    @staticmethod
    def forward(ctx: Any, call: tuple, *graded: Any) -> Any:
        plan, operands, settings, seed, return_lse = call
        o, lse = _forward(plan, operands, settings, seed, True)
        ctx.how = plan, settings, seed, operands.alibi_slopes, operands[6:]
        ctx.save_for_backward(o, lse, *graded)
        if not return_lse:
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None = None) -> tuple:
        o, lse, q, k, v, *more = ctx.saved_tensors
        bias, sink = more or (None, None)
        plan, settings, seed, slopes, lengths = ctx.how
        operands = Operands(q, k, v, slopes, bias, sink, *lengths)
        _, want_q, want_k, want_v, *want = ctx.needs_input_grad
        d_o = torch.zeros_like(o) if d_o is None else readable(d_o)
        dq, dk, dv, dbias, dsink = _backward(plan, operands, settings, seed, (o, lse, d_o, d_lse),
                                             want or (False, False))
        if dbias is not None and bias is not None:
            dbias = dbias.to(bias.dtype)
        if torch.is_grad_enabled():  # create_graph=True
            dq, dk, dv = _NoSecondDerivative.apply((dq, dk, dv), q, k, v, d_o)
        found = None, dq if want_q else None, dk if want_k else None, dv if want_v else None
        return (*found, dbias, dsink) if want else found


class _NoSecondDerivative(torch.autograd.Function):
    """Hands first gradients on, and raises when someone differentiates them."""

    backward = staticmethod(no_second_derivative)

    @staticmethod
    def forward(ctx: Any, grads: tuple, *depends_on: Any) -> tuple:
        return grads


# Function.apply but for its care of functorch's transforms, which never come this way (_alone).
_apply = super(torch.autograd.Function, _Attention).apply
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def _alone() -> bool:
    """No one looks over the shoulder: no compiler, no mode, no transform."""
    return not is_compiling() and _dispatch_modes() == 0 and functorch_level() is None


def _plain(operands: Operands) -> bool:
    """Nothing but memory of a CPU or a GPU: no fake tensor, no subclass, no sign that is still to be
    turned."""
    return operands.q.device.type in ("cpu", "cuda") and all(
        t is None or (type(t) in _CLASSES and not t.is_neg()) for t in operands)


def _autocast(operands: Operands) -> Operands:
    """q, k and v in autocast's dtype where it is on, as scaled_dot_product_attention takes them."""
    kind = operands.q.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    lower = (torch.float32, torch.float16, torch.bfloat16)
    if any(t.dtype not in lower for t in operands[:3]):
        return operands
    return operands._replace(**{n: t.to(dtype) for n, t in zip("qkv", operands[:3])})


def _seen(operands: Operands, settings: Settings) -> Planned | None:
    """The plan of a call that needs no second look: plain tensors of shapes seen before."""
    plan = _native.find_seen(operands, settings)
    if plan is None or torch.is_autocast_enabled(plan.device):
        return None
    q, k, v = operands[:3]
    return None if q.is_neg() or k.is_neg() or v.is_neg() else plan


def _graded(operands: Operands) -> bool:
    """Whether a gradient is wanted. On every call's way."""
    if not torch.is_grad_enabled():
        return False
    q, k, v, slopes, bias, sink = operands[:6]
    if slopes is not None and slopes.requires_grad:
        raise NotImplementedError("alibi_slopes requires a gradient, and there is none; accepted: "
                                  f"gradients of {', '.join(GRADED)}")
    return (q.requires_grad or k.requires_grad or v.requires_grad
            or (bias is not None and bias.requires_grad)
            or (sink is not None and sink.requires_grad))


def attention(operands: Operands, settings: Settings, seed: int | None, return_lse: bool) -> Any:
    """tilewise.attention on torch tensors."""
    alone = _alone()
    plan = _seen(operands, settings) if alone else None
    if plan is None:
        check(operands)
        _graded(operands)  # raises for what has none
        operands = _autocast(operands)
        if not alone or not _plain(operands):
            seed = None if seed is None else as_int64(seed)
            run = Transformed.apply if transformed() else torch.ops.tilewise.forward
            o, lse, _ = run(*operands, seed, *settings)
            return (o, lse) if return_lse else o
        plan = planned(Torch, operands, settings)
    seed = drawn_seed(settings, seed)
    if _graded(operands):
        q, k, v, _, bias, sink, *_ = operands
        more = () if bias is None and sink is None else (bias, sink)
        return _apply((plan, operands, settings, seed, return_lse), q, k, v, *more)
    o, lse = _forward(plan, operands, settings, seed, return_lse)
    return (o, lse) if return_lse else o
