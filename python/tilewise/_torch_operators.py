"""PyTorch's custom operators: what the compiler sees.

torch.ops.tilewise.forward and .backward have fake versions and an autograd formula, so torch.compile
(fullgraph), export, fake tensors and CUDA graphs see two opaque operators with known shapes.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arrays import Torch
from ._call import NAMES, Incoming, Operands, Settings, backward, forward, one_framework, one_of

GRADED = ("q", "k", "v", "bias", "sink")  # what has a gradient
_INPUTS = ("Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? bias, Tensor? sink, "
           "Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? seqused_q, Tensor? seqused_kv")
_SETTINGS = ("bool causal, SymInt left, SymInt right, str align, float? scale, float softcap, "
             "float dropout_p, bool deterministic, str kernel, str isa, int threads, int tile_q, "
             "int tile_kv, SymInt max_seqlen_q, SymInt max_seqlen_kv")
_TENSORS = len(NAMES)


def as_int64(seed: int) -> int:
    """The same 64 bits in an operator's signed int."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def drawn_seed(settings: Settings, seed: int | None) -> int:
    if seed is not None or settings.dropout_p <= 0:
        return seed or 0
    return int(torch.randint(0, 1 << 62, (), dtype=torch.int64))


def check(operands: Operands) -> None:
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
    return made if seed is None else made.fill_(as_int64(seed))


@torch.library.impl("tilewise::forward", ("cpu", "cuda"))
def _forward_op(*args: Any) -> tuple:
    operands, settings = Operands(*args[:_TENSORS]), one_of(Settings(*args[_TENSORS + 1:]))
    check(operands)
    seed = drawn_seed(settings, args[_TENSORS])
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
    grads = backward(Torch, operands, settings, Incoming(o, lse, readable(d_o), d_lse),
                     seed=int(seed) if seed.numel() else 0, want=args[-2:])
    return tuple(_no_gradient(operands.q) if g is None else g for g in grads)


@torch.library.register_fake("tilewise::backward")
def _backward_fake(*args: Any) -> tuple:
    operands = Operands(*args[5:5 + _TENSORS])
    q, bias, sink = operands.q, operands.bias, operands.sink
    dbias = bias.new_empty(bias.shape, dtype=torch.float32) if args[-2] else _no_gradient(q)
    dsink = sink.new_empty(sink.shape, dtype=torch.float32) if args[-1] else _no_gradient(q)
    return (*[t.new_empty(t.shape) for t in operands[:3]], dbias, dsink)


def readable(d_o: Tensor) -> Tensor:
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
    run = _TransformedBackward.apply if transformed() else torch.ops.tilewise.backward
    grads = run(d_o, d_lse, o, lse, seed, *inputs, *ctx.settings, *want)
    return *_placed(inputs[4], want, grads), *[None] * (1 + len(ctx.settings))


def _placed(bias: Any, want: list, grads: tuple) -> tuple:
    """The gradients of the ten inputs."""
    dq, dk, dv, dbias, dsink = grads
    return (dq, dk, dv, None, dbias.to(bias.dtype) if want[0] else None, dsink if want[1] else None,
            None, None, None, None)


def no_second_derivative(ctx: Any, *_: Any) -> Any:
    """Taken as constants, first gradients would be silently wrong."""
    raise NotImplementedError("tilewise.attention has no second derivative; accepted: backward once, or "
                              "an eager attention where create_graph needs more")


torch.library.register_autograd("tilewise::forward", _backward_formula,
                                setup_context=_setup_context)
torch.library.register_autograd("tilewise::backward", no_second_derivative)

is_compiling = torch.compiler.is_compiling
functorch_level = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def transformed() -> bool:
    """Whether torch.func transforms this call (vmap, grad, ...)."""
    return not is_compiling() and functorch_level() is not None


class Transformed(torch.autograd.Function):
    """The operators' formula for torch.func, which knows no custom operator's."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward_formula)

    @staticmethod
    def forward(*args: Any) -> tuple:
        return torch.ops.tilewise.forward(*args)


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True
    backward = staticmethod(no_second_derivative)

    @staticmethod
    def forward(*args: Any) -> tuple:
        return torch.ops.tilewise.backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass
