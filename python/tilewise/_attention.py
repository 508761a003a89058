"""The functions that users call. Each collects its keyword arguments and hands over to the framework
of its arrays: _torch and _jax differentiate, _call works on everything else."""
from __future__ import annotations

import sys
from typing import Any, NamedTuple

from . import _arrays, _call
from ._call import Incoming, Operands, Settings, integer, one_of, settings_of

_NAMES = ("causal", "window", "scale", "softcap", "align", "dropout_p", "deterministic", "kernel",
          "isa", "threads", "tile_q", "tile_kv", "max_seqlen_q", "max_seqlen_kv")
_MOST_SETTINGS = 1024
_settings: dict[tuple, Settings] = {}  # by the values of _NAMES
_backends: dict[type, Any] = {}  # by the class of an array


def _compiling() -> bool:
    """Under torch.compile nothing is remembered: it would guard on the memory and compile again."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def _remembered(values: tuple) -> Settings:
    """settings_of, without paying for it on every call."""
    try:
        found = _settings.get(values)
    except TypeError:  # a window given as a list
        return one_of(settings_of("attention", dict(zip(_NAMES, values))))
    if found is None:
        found = one_of(settings_of("attention", dict(zip(_NAMES, values))))
        if len(_settings) >= _MOST_SETTINGS:
            _settings.clear()
        _settings[values] = found
    return found


def _backend(q: Any) -> Any:
    """The module that differentiates arrays like `q`, or None."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(q, torch.Tensor):
        from . import _torch
        return _torch
    if jax is not None and isinstance(q, jax.Array):
        from . import _jax
        return _jax
    return None


def _seed(settings: Settings, seed: Any) -> int:
    if seed is None:
        if settings.dropout_p > 0:
            raise ValueError("seed is None with dropout; accepted here: an int, so that the backward "
                             "can draw the same mask (PyTorch tensors may leave it out)")
        return 0
    return seed


def _run(operands: Operands, values: tuple, seed: Any, return_lse: bool) -> Any:
    """Settles what `values`, those of _NAMES, ask for, and hands over to the framework's module."""
    if seed is not None:
        seed = integer("seed", seed)
    kind = type(operands.q)
    if _compiling():
        settings = settings_of("attention", dict(zip(_NAMES, values)))
        backend = _backend(operands.q) or _call
    else:
        settings = _remembered(values)
        backend = _backends.get(kind)
        if backend is None:
            backend = _backends[kind] = _backend(operands.q) or _call
    if backend is not _call:
        return backend.attention(operands, settings, seed, return_lse)
    operands = Operands(*[_arrays.from_dlpack(n, a) for n, a in zip(Operands._fields, operands)])
    out, lse = _call.forward(_call.one_framework(operands), operands, settings,
                             seed=_seed(settings, seed), want_lse=return_lse)
    return (out, lse) if return_lse else out


def attention(q: Any, k: Any, v: Any, *, causal: bool = False,
              window: tuple[int, int] | None = None, scale: float | None = None,
              softcap: float = 0.0, alibi_slopes: Any = None, bias: Any = None, sink: Any = None,
              seqused_q: Any = None, seqused_kv: Any = None, align: str = "bottom-right",
              dropout_p: float = 0.0, seed: int | None = None, deterministic: bool = False,
              return_lse: bool = False, kernel: str = "auto", isa: str = "auto", threads: int = 0,
              tile_q: int = 0, tile_kv: int = 0) -> Any:
    """softmax(scale * q k^T + bias and mask) v, exactly, in memory that grows with S and not S^2.

    Differentiable on PyTorch tensors (q, k, v, bias, sink) and JAX arrays; for NumPy and CuPy there is
    `attention_backward`. docs/semantics.md has the formulas; the algorithm is FlashAttention's
    (Dao et al. 2022; Dao 2023; Shah et al. 2024).

    Args:
        q: (B, Sq, Hq, D), float32, float16 or bfloat16; any strides, the last dimension contiguous.
        k: (B, Sk, Hkv, D). Hkv divides Hq; query head h reads kv head h // (Hq // Hkv).
        v: (B, Sk, Hkv, Dv).
        causal: key j is visible to query i iff j <= i + off, where off is Sk - Sq, or 0 with
            align="top-left".
        window: (left, right), inclusive: i + off - left <= j <= i + off + right; -1 is unbounded.
        scale: of the scores; 1/sqrt(D) if None.
        softcap: c in c * tanh(score / c); 0 is off.
        alibi_slopes: float32 (Hq) or (B, Hq): -slope * |i + off - j| joins the score.
        bias: (B|1, Hq|1, Sq|1, Sk|1), added to the score.
        sink: float32 (Hq), a logit that joins each row's denominator and carries no value.
        seqused_q, seqused_kv: int32 (B), how many rows of each sequence are in use; rows past that
            are never read, and O there is 0.
        align: "bottom-right" or "top-left", where the diagonal of causal, window and ALiBi lies.
        dropout_p: chance that a probability is dropped, in [0, 1).
        seed: of the dropout; PyTorch draws one from its generator if None.
        deterministic: gradients bitwise the same on every run (on the CPU they always are).
        return_lse: also return LSE.
        kernel, isa, threads, tile_q, tile_kv: how; see `plan`. Results do not depend on threads.

    Returns:
        O: (B, Sq, Hq, Dv) in q's dtype; with return_lse also LSE, float32 (B, Hq, Sq), the natural
        log of each row's softmax denominator. A row that sees no key has O = 0 and LSE = -inf.

    Raises:
        ValueError, TypeError: an argument that can't work; the message names it, its value and what
            is accepted.
        NotImplementedError: a valid problem that no kernel runs on this device.
        RuntimeError: a GPU, driver or compiler that isn't there.
    """
    operands = Operands(q, k, v, alibi_slopes, bias, sink, None, None, seqused_q, seqused_kv)
    values = (causal, window, scale, softcap, align, dropout_p, deterministic, kernel, isa, threads,
              tile_q, tile_kv, None, None)
    return _run(operands, values, seed, return_lse)


def attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_kv: Any, *,
                     max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
                     causal: bool = False, window: tuple[int, int] | None = None,
                     scale: float | None = None, softcap: float = 0.0, alibi_slopes: Any = None,
                     bias: Any = None, sink: Any = None, seqused_q: Any = None,
                     seqused_kv: Any = None, align: str = "bottom-right", dropout_p: float = 0.0,
                     seed: int | None = None, deterministic: bool = False, return_lse: bool = False,
                     kernel: str = "auto", isa: str = "auto", threads: int = 0, tile_q: int = 0,
                     tile_kv: int = 0) -> Any:
    """`attention` over B sequences of different lengths that lie end to end.

    Args:
        q: (total_q, Hq, D). k: (total_kv, Hkv, D). v: (total_kv, Hkv, Dv).
        cu_seqlens_q, cu_seqlens_kv: int32 (B + 1), from 0 to the total, never falling: sequence b is
            rows cu_seqlens[b] to cu_seqlens[b + 1]. Either may be None where that side is padded,
            (B, S, H, D).
        max_seqlen_q, max_seqlen_kv: at least the longest sequence; the total if None, which on a GPU
            starts more blocks than needed.
        The others are those of `attention`. bias counts i and j inside each sequence.

    Returns:
        O: (total_q, Hq, Dv); with return_lse also LSE, float32 (Hq, total_q).

    Raises:
        As `attention`.
    """
    operands = Operands(q, k, v, alibi_slopes, bias, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q,
                        seqused_kv)
    values = (causal, window, scale, softcap, align, dropout_p, deterministic, kernel, isa, threads,
              tile_q, tile_kv, max_seqlen_q, max_seqlen_kv)
    return _run(operands, values, seed, return_lse)


class Gradients(NamedTuple):
    """What attention_backward returns. dbias and dsink are float32, None where there is no such
    input."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsink: Any = None


def attention_backward(d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *, d_lse: Any = None,
                       seed: int | None = None, **options: Any) -> Gradients:
    """The gradients of `attention` or `attention_varlen`, for arrays without automatic
    differentiation (NumPy, CuPy; PyTorch tensors are taken without autograd).

    Args:
        d_o: the gradient of O, shaped as O. d_lse: the gradient of LSE, if there is one.
        q, k, v, options: as they were given to the forward, cu_seqlens by keyword.
        o, lse: what the forward returned with return_lse=True.

    Raises:
        As `attention`; NotImplementedError where the device has no backward for this problem.
    """
    options.pop("return_lse", None)
    if seed is not None:
        seed = integer("seed", seed)
    tensors = {n: options.pop(n) for n in Operands._fields[3:] if n in options}
    settings = settings_of("attention_backward", options)
    names = [*Operands._fields, "o", "lse", "d_o", "d_lse"]
    operands = Operands(q, k, v, **tensors)
    arrays = [_arrays.from_dlpack(n, a) for n, a in zip(names, (*operands, o, lse, d_o, d_lse))]
    operands, incoming = Operands(*arrays[:-4]), Incoming(*arrays[-4:])
    framework = _call.one_framework(operands)
    for name, array in zip(Incoming._fields, incoming):
        if array is not None and not framework.owns(array):
            raise TypeError(f"{name} is not {framework.__name__}'s; accepted: all arrays of one "
                            "framework")
    return Gradients(*_call.backward(framework, operands, settings, incoming,
                                     seed=_seed(settings, seed),
                                     want=(operands.bias is not None, operands.sink is not None)))
