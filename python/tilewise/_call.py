"""From arrays and keyword arguments to a plan and its native calls, for any framework.

The library checks every tensor against the plan and says what is wrong; what is checked here is only
what a plan can't be made without: ranks, dtypes, one framework and one device.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _arrays, _native


class Operands(NamedTuple):
    """What attention reads, in the native module's order. Shapes: dense / packed."""

    q: Any  # (B, Sq, Hq, D) / (total_q, Hq, D)
    k: Any  # (B, Sk, Hkv, D) / (total_kv, Hkv, D)
    v: Any  # (B, Sk, Hkv, Dv) / (total_kv, Hkv, Dv)
    alibi_slopes: Any = None  # (Hq) or (B, Hq)
    bias: Any = None  # (B|1, Hq|1, Sq|1, Sk|1)
    sink: Any = None  # (Hq)
    cu_seqlens_q: Any = None  # (B + 1)
    cu_seqlens_kv: Any = None  # (B + 1)
    seqused_q: Any = None  # (B)
    seqused_kv: Any = None  # (B)


NAMES = Operands._fields


class Settings(NamedTuple):
    """Everything but the tensors. Hashable, and in the order of torch's custom operators."""

    causal: bool = False
    left: int = -1
    right: int = -1
    align: str = "bottom-right"
    scale: float | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    kernel: str = "auto"
    isa: str = "auto"
    threads: int = 0
    tile_q: int = 0
    tile_kv: int = 0
    max_seqlen_q: int = -1  # packed only; -1: not given
    max_seqlen_kv: int = -1


_ALIGNS = ("bottom-right", "top-left")


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a str")
    if not value or any(c in " =" for c in value):
        raise ValueError(f'{name} is "{value}"; accepted: one of the names in docs/python.md')
    if name == "align" and value not in _ALIGNS:
        raise ValueError(f'align is "{value}"; accepted: "bottom-right", "top-left"')
    return value


def _real(name: str, value: Any) -> float:
    if isinstance(value, str) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a number")
    return float(value)


def integer(name: str, value: Any) -> int:
    """`value` as a Python int; TypeError naming the argument."""
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: an int")
    return operator.index(value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, str) or value is None or value not in (0, 1):
        raise TypeError(f"{name} is {value!r}; accepted: a bool")
    return bool(value)


def _window(value: Any) -> tuple[int, int]:
    if value is None:
        return -1, -1
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"window is {value!r}; accepted: None or (left, right), -1 for unbounded")
    return integer("window[0]", value[0]), integer("window[1]", value[1])


_READERS = {"causal": _flag, "deterministic": _flag, "align": _word, "kernel": _word, "isa": _word,
            "scale": _real, "softcap": _real, "dropout_p": _real, "threads": integer,
            "tile_q": integer, "tile_kv": integer, "max_seqlen_q": integer, "max_seqlen_kv": integer}
_OPTIONAL = {"scale": None, "max_seqlen_q": -1, "max_seqlen_kv": -1}  # what None means there


def settings_of(function: str, options: dict) -> Settings:
    """Settings from the keyword arguments of `function`: types made sure of, `window` taken apart."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name == "window":
            values["left"], values["right"] = _window(value)
        elif name not in _READERS:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        elif value is None and name in _OPTIONAL:
            values[name] = _OPTIONAL[name]
        else:
            values[name] = _READERS[name](name, value)
    return Settings(**values)


def _expect_rank(name: str, array: Any, rank: int, shape: str) -> None:
    if len(array.shape) != rank:
        raise ValueError(f"{name} has rank {len(array.shape)}; accepted: rank {rank}, shape {shape}")


def _lengths(o: Operands) -> dict:
    """The fields of a spec that come from shapes."""
    out: dict[str, Any] = {}
    packed_q, packed_kv = o.cu_seqlens_q is not None, o.cu_seqlens_kv is not None
    _expect_rank("q", o.q, 3 if packed_q else 4, "(total_q, Hq, D)" if packed_q else "(B, Sq, Hq, D)")
    for name, array, last in (("k", o.k, "D"), ("v", o.v, "Dv")):
        _expect_rank(name, array, 3 if packed_kv else 4,
                     f"(total_kv, Hkv, {last})" if packed_kv else f"(B, Sk, Hkv, {last})")
    for name, array in (("cu_seqlens_q", o.cu_seqlens_q), ("cu_seqlens_kv", o.cu_seqlens_kv)):
        if array is not None:
            _expect_rank(name, array, 1, "(B + 1)")
            out["batch"] = array.shape[0] - 1
            out[name] = 1
    if packed_q:
        out["total_q"] = o.q.shape[0]
    else:
        out["batch"], out["seq_q"] = o.q.shape[0], o.q.shape[1]
    if packed_kv:
        out["total_kv"] = o.k.shape[0]
    else:
        out["batch"], out["seq_kv"] = o.k.shape[0] if packed_q else out["batch"], o.k.shape[1]
    out["heads_q"], out["heads_kv"] = o.q.shape[-2], o.k.shape[-2]
    out["head_dim"], out["head_dim_v"] = o.q.shape[-1], o.v.shape[-1]
    return out


def _score_terms(o: Operands, sizes: dict, dtype_of: Any) -> dict:
    out: dict[str, Any] = {}
    if o.alibi_slopes is not None:
        rank = len(o.alibi_slopes.shape)
        if rank not in (1, 2):
            raise ValueError(f"alibi_slopes has rank {rank}; accepted: shape (Hq) or (B, Hq)")
        out["alibi"] = rank
    if o.bias is not None:
        _expect_rank("bias", o.bias, 4, "(B|1, Hq|1, Sq|1, Sk|1)")
        full = (sizes["batch"], sizes["heads_q"], sizes["seq_q"], sizes["seq_kv"])
        dims = "".join("." if have == 1 and want != 1 else ":"
                       for have, want in zip(o.bias.shape, full))
        out["bias"] = _arrays.SPEC_NAMES[dtype_of("bias", o.bias)] + dims
    for name in ("sink", "seqused_q", "seqused_kv"):
        if getattr(o, name) is not None:
            out[name] = 1
    return out


def spec_of(o: Operands, settings: Settings, device: tuple[int, int], dtype_of: Any) -> str:
    """The problem as the line of text that the native module reads (python/native/spec.h)."""
    fields = _lengths(o)
    for side in ("q", "kv"):
        if "seq_" + side not in fields:
            longest = getattr(settings, "max_seqlen_" + side)
            fields["seq_" + side] = fields["total_" + side] if longest < 0 else longest
    fields.update(_score_terms(o, fields, dtype_of))
    fields["dtype"] = _arrays.SPEC_NAMES[dtype_of("q", o.q)]
    fields["device"] = "cpu" if device[0] == _arrays.CPU else f"cuda:{device[1]}"
    for name, value in settings._asdict().items():
        if value is not None and not name.startswith("max_seqlen"):
            fields[name] = int(value) if isinstance(value, bool) else value
    # Integers that only a traced program knows (torch.SymInt) become plain here.
    return " ".join(f"{name}={value}" for name, value in fields.items())


class _Dense(NamedTuple):
    """An output to be made, and its view but for the address."""

    shape: tuple
    strides: tuple
    dtype: int
    view: tuple


def _dense(shape: tuple, dtype: int, device: tuple[int, int]) -> _Dense:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(extent, 1))
    return _Dense(shape, tuple(strides), dtype, (dtype, *device, shape, tuple(strides)))


class Planned:
    """A native plan with what each call needs of it at hand."""

    __slots__ = ("backward_bytes", "device", "forward_bytes", "lse", "native", "o")

    def __init__(self, framework: Any, o: Operands, settings: Settings) -> None:
        q, device = o.q, framework.device(o.q)
        self.native = _native.make_plan(spec_of(o, settings, device, framework.dtype))
        self.forward_bytes = self.native.forward_bytes
        self.backward_bytes = self.native.backward_bytes
        self.device = "cpu" if device[0] == _arrays.CPU else "cuda"
        rows = (q.shape[1], q.shape[0]) if len(q.shape) == 3 else (
            q.shape[0], q.shape[2], q.shape[1])
        self.o = _dense((*q.shape[:-1], o.v.shape[-1]), framework.dtype("q", q), device)
        self.lse = _dense(rows, _arrays.F32, device)


_MOST_PLANS = 4096
_plans: dict[tuple, Planned] = {}
_settings: dict[Settings, Settings] = {}


def one_of(settings: Settings) -> Settings:
    """One object for these values: the native module tells settings apart by identity."""
    if len(_settings) >= _MOST_PLANS:
        _settings.clear()
    return _settings.setdefault(settings, settings)


def planned(framework: Any, o: Operands, settings: Settings) -> Planned:
    """The plan for these operands, remembered by everything that decides it."""
    if framework is _arrays.Torch:
        found = _native.find_seen(o, settings)
        if found is not None:
            return found
        views_of(framework, NAMES, o)  # says whose dtype can't be read
    # Only what is given goes into the key; a call is to cost microseconds.
    bias, slopes = o.bias, o.alibi_slopes
    key = (framework, o.q.shape, o.k.shape, o.v.shape, o.q.dtype, framework.device(o.q), settings,
           None if bias is None else (bias.shape, bias.dtype),
           None if slopes is None else len(slopes.shape), o.sink is None,
           None if o.cu_seqlens_q is None else o.cu_seqlens_q.shape,
           None if o.cu_seqlens_kv is None else o.cu_seqlens_kv.shape,
           o.seqused_q is None, o.seqused_kv is None)
    found = _plans.get(key)
    if found is None:
        found = Planned(framework, o, settings)
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = found
    if framework is _arrays.Torch:
        _native.remember_seen(o, settings, found)
    return found


def views_of(framework: Any, names: tuple, arrays: tuple) -> tuple:
    view = framework.view
    return tuple([None if t is None else view(n, t) for n, t in zip(names, arrays)])


def forward(framework: Any, o: Operands, settings: Settings, *, seed: int = 0, offset: int = 0,
            want_lse: bool = True) -> tuple:
    """(O, LSE or None), new arrays of the framework. No autograd."""
    plan = planned(framework, o, settings)
    q, (shape, _, dtype, view) = o.q, plan.o
    out = framework.empty(shape, dtype, q)
    out_view = (framework.address(out), *view)
    lse = lse_view = None
    if want_lse:
        shape, _, dtype, view = plan.lse
        lse = framework.empty(shape, dtype, q)
        lse_view = (framework.address(lse), *view)
    plan.native.run_forward(views_of(framework, NAMES, o), (seed, offset), (out_view, lse_view),
                            framework.launch(q, plan.forward_bytes))
    return out, lse


class Incoming(NamedTuple):
    """What the backward reads besides the operands."""

    o: Any
    lse: Any
    d_o: Any
    d_lse: Any = None


_GRADIENTS = ("o", "lse", "d_o", "d_lse", "dq", "dk", "dv", "dbias", "dsink")


def backward(framework: Any, o: Operands, settings: Settings, incoming: Incoming, *, seed: int = 0,
             offset: int = 0, want: Sequence[bool] = (False, False)) -> tuple:
    """(dQ, dK, dV, dBias or None, dSink or None); `want` asks for the last two."""
    plan = planned(framework, o, settings)
    dq, dk, dv = (framework.empty(tuple(t.shape), framework.dtype("q", t), t) for t in o[:3])
    dbias = framework.empty(tuple(o.bias.shape), _arrays.F32, o.bias) if want[0] else None
    dsink = framework.empty(tuple(o.sink.shape), _arrays.F32, o.sink) if want[1] else None
    gradients = views_of(framework, _GRADIENTS, (*incoming, dq, dk, dv, dbias, dsink))
    plan.native.run_backward(views_of(framework, NAMES, o), (seed, offset), gradients,
                             framework.launch(o.q, plan.backward_bytes))
    return dq, dk, dv, dbias, dsink


def one_framework(o: Operands) -> Any:
    """The framework of all operands; TypeError if they are of several."""
    framework = _arrays.framework_of("q", o.q)
    for name, array in zip(NAMES, o):
        if array is None and name not in ("q", "k", "v"):
            continue
        if not framework.owns(array):
            other = _arrays.framework_of(name, array)
            raise TypeError(f"{name} is {other.__name__}'s and q is {framework.__name__}'s; accepted: "
                            "all arrays of one framework")
    return framework
