"""JAX: the library as two XLA custom calls, with a custom derivative, inside and outside jit.

Nothing is built against jaxlib: the native module speaks XLA's foreign function interface by its own
declarations. A plan is made while tracing, for the platform that the arrays are on, or inside jit for
JAX's default one.
"""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _arrays, _native
from ._call import NAMES, Operands, Settings, spec_of

for _name, _target in _native.jax_targets().items():
    for _platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target(_name, _target, platform=_platform)

_GRADED = ("q", "k", "v", "bias", "sink")


class _Static(NamedTuple):
    """What a trace fixes."""

    spec: str
    names: tuple  # of the operands that are given
    seed: int
    on_gpu: bool


def _dtype(name: str, array: Any) -> int:
    number = _arrays.DTYPES.get(array.dtype.name)
    if number is None:
        raise _arrays.wrong_dtype(name, array.dtype)
    return number


def _device(q: Any) -> tuple[int, int]:
    if isinstance(q, jax.core.Tracer):
        return (_arrays.CUDA, 0) if jax.default_backend() == "gpu" else (_arrays.CPU, 0)
    (device, *others) = q.devices()
    if others:
        raise ValueError(f"q is spread over {1 + len(others)} devices; accepted: arrays of one device, "
                         "or tilewise.attention inside jax.shard_map")
    if device.platform not in ("cpu", "gpu"):
        raise ValueError(f"q is on {device.platform}; accepted: cpu, cuda")
    return (_arrays.CUDA, device.local_hardware_id or 0) if device.platform == "gpu" else (
        _arrays.CPU, 0)


def _rows(operands: Operands) -> tuple:
    """The shape of LSE."""
    q = operands.q
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def _call(target: str, static: _Static, arguments: list, results: list, workspace: int) -> list:
    if static.on_gpu:
        results = [*results, jax.ShapeDtypeStruct((workspace,), np.uint8)]
    given = sum(1 << NAMES.index(n) for n in static.names)
    seed = np.uint64(static.seed & (1 << 64) - 1).astype(np.int64)
    found = jax.ffi.ffi_call(target, results, vmap_method="sequential")(
        *arguments, spec=static.spec, given=np.int64(given), seed=seed)
    return list(found[:-1] if static.on_gpu else found)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: _Static, *arrays: Any) -> tuple:
    operands = Operands(**dict(zip(static.names, arrays)))
    q, v = operands.q, operands.v
    results = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype),
               jax.ShapeDtypeStruct(_rows(operands), np.float32)]
    return tuple(_call("tilewise_forward", static, list(arrays), results,
                       _native.make_plan(static.spec).forward_bytes))


def _attend_fwd(static: _Static, *primals: Any) -> tuple:
    for name, primal in zip(static.names, primals):
        if primal.perturbed and name not in _GRADED and jnp.issubdtype(primal.value.dtype, np.floating):
            raise NotImplementedError(f"{name} is differentiated, and has no gradient; accepted: "
                                      f"gradients of {', '.join(_GRADED)}")
    arrays = [p.value for p in primals]
    o, lse = _attend(static, *arrays)
    return (o, lse), (*arrays, o, lse)


def _attend_bwd(static: _Static, saved: tuple, cotangents: tuple) -> tuple:
    *arrays, o, lse = saved
    given = dict(zip(static.names, arrays))
    d_o, d_lse = (jnp.zeros(t.shape, t.dtype) if isinstance(c, SymbolicZero) else c
                  for c, t in zip(cotangents, (o, lse)))
    names = [n for n in _GRADED if n in given]
    results = [jax.ShapeDtypeStruct(given[n].shape, given[n].dtype if n in "qkv" else np.float32)
               for n in names]
    grads = dict(zip(names, _call("tilewise_backward", static, [*arrays, o, lse, d_o, d_lse], results,
                                  _native.make_plan(static.spec).backward_bytes)))
    return tuple(grads[n].astype(given[n].dtype) if n in grads else None for n in static.names)


_attend.defvjp(_attend_fwd, _attend_bwd, symbolic_zeros=True)


def attention(operands: Operands, settings: Settings, seed: Any, return_lse: bool) -> Any:
    """tilewise.attention on JAX arrays, traced or not. `seed` is a Python int, fixed by the trace."""
    if seed is None and settings.dropout_p > 0:
        raise ValueError("seed is None with dropout; accepted with JAX: a Python int")
    for name, array in zip(NAMES, operands):
        if array is not None and not isinstance(array, jax.Array):
            raise TypeError(f"{name} is a {type(array).__name__} and q is JAX's; accepted: all arrays "
                            "of one framework")
    for name in ("k", "v"):
        if getattr(operands, name) is None:
            raise TypeError(f"{name} is a NoneType; accepted: an array")
    device = _device(operands.q)
    spec = spec_of(operands, settings, device, _dtype)
    _native.make_plan(spec)  # what can't be planned is refused here, not while XLA runs
    given = {n: a for n, a in zip(NAMES, operands) if a is not None}
    static = _Static(spec, tuple(given), int(seed or 0), device[0] == _arrays.CUDA)
    o, lse = _attend(static, *given.values())
    return (o, lse) if return_lse else o
