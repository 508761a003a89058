"""PyTorch: custom operators for the compiler, and a short way past the dispatcher for eager calls.

torch.ops.tilewise.forward and .backward have fake versions and an autograd formula, so torch.compile
(fullgraph), export, fake tensors and CUDA graphs see two opaque operators with known shapes. An
ordinary eager call needs none of that and goes straight to the native module, or through one
autograd.Function: dispatching 26 arguments in Python costs more than a short attention.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arrays import Torch
from ._call import (NAMES, Incoming, Operands, Planned, Settings, backward, forward, one_framework,
                    one_of, planned)

_DENSE = torch.contiguous_format
_CLASSES = (Tensor, torch.nn.Parameter)  # exactly these hold their own memory
if _native.use_exchange(*_CLASSES):
    Torch.read_natively = _CLASSES

_GRADED = ("q", "k", "v", "bias", "sink")  # what has a gradient
_INPUTS = ("Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? bias, Tensor? sink, "
           "Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? seqused_q, Tensor? seqused_kv")
_SETTINGS = ("bool causal, SymInt left, SymInt right, str align, float? scale, float softcap, "
             "float dropout_p, bool deterministic, str kernel, str isa, int threads, int tile_q, "
             "int tile_kv, SymInt max_seqlen_q, SymInt max_seqlen_kv")
_TENSORS = len(NAMES)


def _as_int64(seed: int) -> int:
    """The same 64 bits in an operator's signed int."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _drawn_seed(settings: Settings, seed: int | None) -> int:
    if seed is not None or settings.dropout_p <= 0:
        return seed or 0
    return int(torch.randint(0, 1 << 62, (), dtype=torch.int64))


def _check(operands: Operands) -> None:
    """All torch's and on one device."""
    device = operands.q.device
    for name, tensor in zip(NAMES, operands):
        if tensor is None and name not in ("q", "k", "v"):
            continue
        if not isinstance(tensor, Tensor):
            one_framework(operands)  # says what it is
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device} and q is on {device}; accepted: all "
                             "tensors on one device")


def _graded(operands: Operands) -> bool:
    """Whether a gradient is wanted. On every call's way."""
    if not torch.is_grad_enabled():
        return False
    q, k, v, slopes, bias, sink = operands[:6]
    if slopes is not None and slopes.requires_grad:
        raise NotImplementedError("alibi_slopes requires a gradient, and there is none; accepted: "
                                  f"gradients of {', '.join(_GRADED)}")
    return (q.requires_grad or k.requires_grad or v.requires_grad
            or (bias is not None and bias.requires_grad)
            or (sink is not None and sink.requires_grad))


# --- the operators ---------------------------------------------------------------------------------

torch.library.define("tilewise::forward", f"({_INPUTS}, int? seed, {_SETTINGS}) -> "
                     "(Tensor o, Tensor lse, Tensor seed)", tags=(torch.Tag.pt2_compliant_tag,
                                                                  torch.Tag.nondeterministic_seeded))
torch.library.define("tilewise::backward",
                     "(Tensor d_o, Tensor? d_lse, Tensor o, Tensor lse, Tensor drawn_seed, "
                     f"{_INPUTS}, {_SETTINGS}, bool want_dbias, bool want_dsink) -> "
                     "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
                     tags=(torch.Tag.pt2_compliant_tag,))


def _seed_tensor(settings: Settings, like: Tensor, seed: int | None = None) -> Tensor:
    """The seed that was used, for the backward: on the host, and only with dropout."""
    if settings.dropout_p <= 0:
        return like.new_empty((0,), dtype=torch.int64)
    made = torch.empty((1,), dtype=torch.int64)
    return made if seed is None else made.fill_(_as_int64(seed))


@torch.library.impl("tilewise::forward", ("cpu", "cuda"))
def _forward_op(*args: Any) -> tuple:
    operands, settings = Operands(*args[:_TENSORS]), one_of(Settings(*args[_TENSORS + 1:]))
    _check(operands)
    seed = _drawn_seed(settings, args[_TENSORS])
    out, lse = forward(Torch, operands, settings, seed=seed)
    return out, lse, _seed_tensor(settings, operands.q, seed)


@torch.library.register_fake("tilewise::forward")
def _forward_fake(*args: Any) -> tuple:
    operands, settings = Operands(*args[:_TENSORS]), Settings(*args[_TENSORS + 1:])
    q, v = operands.q, operands.v
    rows = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return (q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(rows, dtype=torch.float32),
            _seed_tensor(settings, q))


def _no_gradient(like: Tensor) -> Tensor:
    return like.new_empty((0,), dtype=torch.float32)


@torch.library.impl("tilewise::backward", ("cpu", "cuda"))
def _backward_op(*args: Any) -> tuple:
    d_o, d_lse, o, lse, seed = args[:5]
    operands, settings = Operands(*args[5:5 + _TENSORS]), one_of(Settings(*args[5 + _TENSORS:-2]))
    grads = backward(Torch, operands, settings, Incoming(o, lse, _readable(d_o), d_lse),
                     seed=int(seed) if seed.numel() else 0, want=args[-2:])
    return tuple(_no_gradient(operands.q) if g is None else g for g in grads)


@torch.library.register_fake("tilewise::backward")
def _backward_fake(*args: Any) -> tuple:
    operands = Operands(*args[5:5 + _TENSORS])
    q, bias, sink = operands.q, operands.bias, operands.sink
    dbias = bias.new_empty(bias.shape, dtype=torch.float32) if args[-2] else _no_gradient(q)
    dsink = sink.new_empty(sink.shape, dtype=torch.float32) if args[-1] else _no_gradient(q)
    return (*[t.new_empty(t.shape) for t in operands[:3]], dbias, dsink)


def _readable(d_o: Tensor) -> Tensor:
    """A gradient may come expanded or transposed; the kernels read rows. A GPU's want them aligned
    too."""
    if d_o.stride(-1) != 1 or (d_o.is_cuda and not d_o.is_contiguous()):
        return d_o.contiguous()
    return d_o


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(False)
    ctx.settings = inputs[_TENSORS + 1:]
    ctx.save_for_backward(*inputs[:_TENSORS], *output)


def _backward_formula(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, _: None) -> tuple:
    saved = ctx.saved_tensors
    inputs, (o, lse, seed) = saved[:_TENSORS], saved[_TENSORS:]
    want = [inputs[i] is not None and ctx.needs_input_grad[i] for i in (4, 5)]
    if d_o is None:
        d_o = torch.zeros_like(o)
    grads = torch.ops.tilewise.backward(d_o, d_lse, o, lse, seed, *inputs, *ctx.settings, *want)
    return *_placed(inputs[4], want, grads), *[None] * (1 + len(ctx.settings))


def _placed(bias: Any, want: list, grads: tuple) -> tuple:
    """The gradients of the ten inputs."""
    dq, dk, dv, dbias, dsink = grads
    return (dq, dk, dv, None, dbias.to(bias.dtype) if want[0] else None, dsink if want[1] else None,
            None, None, None, None)


torch.library.register_autograd("tilewise::forward", _backward_formula,
                                setup_context=_setup_context)


# --- eager -----------------------------------------------------------------------------------------

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
        d_o = torch.zeros_like(o) if d_o is None else _readable(d_o)
        dq, dk, dv, dbias, dsink = _backward(plan, operands, settings, seed, (o, lse, d_o, d_lse),
                                             want or (False, False))
        if dbias is not None and bias is not None:
            dbias = dbias.to(bias.dtype)
        if torch.is_grad_enabled():  # create_graph=True
            dq, dk, dv = _NoSecondDerivative.apply((dq, dk, dv), q, k, v, d_o)
        found = None, dq if want_q else None, dk if want_k else None, dv if want_v else None
        return (*found, dbias, dsink) if want else found


class _NoSecondDerivative(torch.autograd.Function):
    """Hands first gradients on, and raises when someone differentiates them: taken as constants they
    would be silently wrong."""

    @staticmethod
    def forward(ctx: Any, grads: tuple, *depends_on: Any) -> tuple:
        return grads

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple:
        raise NotImplementedError("tilewise.attention has no second derivative; accepted: backward "
                                  "once, or an eager attention where create_graph needs more")


# Function.apply but for its care of functorch's transforms, which never come this way (_alone).
_apply = super(torch.autograd.Function, _Attention).apply
_functorch_level = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_is_compiling = torch.compiler.is_compiling


def _alone() -> bool:
    """No one looks over the shoulder: no compiler, no mode, no transform."""
    return not _is_compiling() and _dispatch_modes() == 0 and _functorch_level() is None


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


def attention(operands: Operands, settings: Settings, seed: int | None, return_lse: bool) -> Any:
    """tilewise.attention on torch tensors."""
    alone = _alone()
    plan = _seen(operands, settings) if alone else None
    if plan is None:
        _check(operands)
        _graded(operands)  # raises for what has none
        operands = _autocast(operands)
        if not alone or not _plain(operands):
            seed = None if seed is None else _as_int64(seed)
            o, lse, _ = torch.ops.tilewise.forward(*operands, seed, *settings)
            return (o, lse) if return_lse else o
        plan = planned(Torch, operands, settings)
    seed = _drawn_seed(settings, seed)
    if _graded(operands):
        q, k, v, _, bias, sink, *_ = operands
        more = () if bias is None and sink is None else (bias, sink)
        return _apply((plan, operands, settings, seed, return_lse), q, k, v, *more)
    o, lse = _forward(plan, operands, settings, seed, return_lse)
    return (o, lse) if return_lse else o
