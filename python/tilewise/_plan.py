"""plan: what would run for a problem, and why, before any memory is touched."""
from __future__ import annotations

from typing import Any, NamedTuple

from . import _arrays, _native
from ._call import NAMES, Operands, integer, settings_of, spec_of

_SPELLINGS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16",
              "float": "float32", "half": "float16"}


class _Shape(NamedTuple):
    """Stands in for a tensor that does not exist yet."""

    shape: tuple
    dtype: int


def _dtype_number(name: str, dtype: Any) -> int:
    if hasattr(dtype, "dtype"):  # jax.numpy.float32 and its like
        dtype = dtype.dtype
    word = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    word = word.removeprefix("torch.")
    number = _arrays.DTYPES.get(_SPELLINGS.get(word, word))
    if number is None:
        raise _arrays.wrong_dtype(name, dtype)
    return number


def _stand_in(name: str, given: Any, dtype: Any) -> _Shape | None:
    needed = name in ("q", "k", "v")
    if given is None and not needed:
        return None
    if hasattr(given, "shape"):
        return _Shape(tuple(given.shape), _dtype_number(name, given.dtype))
    if not isinstance(given, (tuple, list)):
        raise TypeError(f"{name} is a {type(given).__name__}; accepted: an array, or a shape")
    shape = tuple(integer(f"{name}[{i}]", extent) for i, extent in enumerate(given))
    if needed:
        return _Shape(shape, _dtype_number("dtype", dtype))
    return _Shape(shape, _arrays.I32 if name.startswith(("cu_", "seqused")) else _arrays.F32)


def _device_of(device: Any, q: Any) -> tuple[int, int]:
    if device is None:
        for framework in (_arrays.Torch, _arrays.CuPy):
            if framework.owns(q):
                return framework.device(q)
        platforms = {d.platform: d.id for d in q.devices()} if hasattr(q, "devices") else {}
        return (_arrays.CUDA, platforms["gpu"]) if "gpu" in platforms else (_arrays.CPU, 0)
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
        raise ValueError(f'device is "{device}"; accepted: "cpu", "cuda", "cuda:N"')
    return (_arrays.CUDA, int(index or 0)) if kind == "cuda" else (_arrays.CPU, 0)


class Plan:
    """What tilewise would do for one problem. str() of it is the explanation in words.

    Attributes:
        forward, backward: dicts of each pass: kernel ("" if none can run it), isa, tile_q, tile_kv,
            threads, workspace_bytes, flops, least_bytes (every input read once, every output written
            once), standard_bytes, fa1_bytes, fa2_bytes (predicted slow-memory traffic of each loop
            order, docs/io_model.md), and passed_over, {kernel: why not}.
    """

    def __init__(self, spec: str) -> None:
        native = _native.make_plan(spec)
        self.forward: dict = native.forward
        self.backward: dict = native.backward
        self._words = native.describe()

    def describe(self) -> str:
        """Kernel, tiles, workspace, FLOPs, predicted traffic, and why other kernels were passed over."""
        return self._words

    __str__ = __repr__ = describe


def plan(q: Any, k: Any, v: Any, *, dtype: Any = "float32", device: Any = None,
         **options: Any) -> Plan:
    """The plan that `attention` (or, with cu_seqlens, `attention_varlen`) would run.

    Args:
        q, k, v: arrays, or shapes such as (B, Sq, Hq, D).
        dtype: of q, k and v where shapes are given: a name or a framework's dtype.
        device: "cpu" or "cuda:N"; by default that of q, or "cpu" where q is a shape.
        options: the keyword arguments of `attention` and `attention_varlen`; tensors may be shapes.

    Raises:
        ValueError: a problem that makes no sense. NotImplementedError: no kernel can run its forward;
        the message lists why. RuntimeError: a device that isn't there.
    """
    options = {n: v for n, v in options.items() if n not in ("seed", "return_lse")}
    given = {"q": q, "k": k, "v": v, **{n: options.pop(n) for n in NAMES[3:] if n in options}}
    operands = Operands(**{n: _stand_in(n, a, dtype) for n, a in given.items()})
    return Plan(spec_of(operands, settings_of("plan", options), _device_of(device, q),
                        lambda name, stand_in: stand_in.dtype))


def kernels(device: str = "cpu") -> list[str]:
    """The names that `kernel` accepts for a kind of device, best first."""
    return _native.kernel_names(_device_of(device, None)[0] == _arrays.CUDA)


def isas() -> list[str]:
    """The names that `isa` accepts on this machine, best first."""
    return _native.isa_names()
