"""merge: two partial softmax results of the same queries over disjoint keys become one.

FlashAttention's rescaling (Dao et al. 2022, section 3.1) between whole results: with
LSE = log(exp(LSE1) + exp(LSE2)), O = exp(LSE1 - LSE) O1 + exp(LSE2 - LSE) O2. A side that saw no key
(LSE = -inf) has no weight, and two such sides stay so, without a NaN in the value or the gradient.
"""
from __future__ import annotations

import sys
from typing import Any

import numpy as np


def _namespace(array: Any) -> Any:
    """The module whose functions work on `array`, by NumPy's names, or None."""
    torch, cupy, jax = (sys.modules.get(m) for m in ("torch", "cupy", "jax"))
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    if jax is not None and isinstance(array, jax.Array):
        return sys.modules["jax"].numpy
    if isinstance(array, np.ndarray):
        return np
    return None


def _rows(weights: Any) -> Any:
    """(..., H, S) statistics as (..., S, H, 1), to scale rows of O."""
    return weights.swapaxes(-1, -2)[..., None]


def merge(o1: Any, lse1: Any, o2: Any, lse2: Any) -> tuple[Any, Any]:
    """Joins attention over two disjoint sets of keys.

    Args:
        o1, o2: (B, Sq, Hq, Dv) or packed (total_q, Hq, Dv), the outputs over each set.
        lse1, lse2: float32 (B, Hq, Sq) or packed (Hq, total_q), natural log.

    Returns:
        (o, lse) of attention over the union; o in o1's dtype, computed in float32. Differentiable in
        PyTorch and JAX.

    Raises:
        ValueError: shapes that don't belong together.
        TypeError: something that is no array.
    """
    xp = _namespace(o1)
    if xp is None:
        raise TypeError(f"o1 is a {type(o1).__name__}; accepted: an array of NumPy, PyTorch, JAX or CuPy")
    for name, array in (("lse1", lse1), ("o2", o2), ("lse2", lse2)):
        if _namespace(array) is not xp:
            raise TypeError(f"{name} is a {type(array).__name__} and o1 is {xp.__name__}'s; accepted: all "
                            "arrays of one framework")
    for name, o, lse in (("1", o1, lse1), ("2", o2, lse2)):
        expected = (*o.shape[:-3], o.shape[-2], o.shape[-3]) if len(o.shape) in (3, 4) else None
        if expected is None or tuple(o.shape) != tuple(o1.shape):
            raise ValueError(f"o{name} has shape {tuple(o.shape)}; accepted: (B, Sq, Hq, Dv) or "
                             "(total_q, Hq, Dv), o1 and o2 alike")
        if tuple(lse.shape) != expected:
            raise ValueError(f"lse{name} has shape {tuple(lse.shape)}; accepted: {expected}")
    top = xp.maximum(lse1, lse2)
    seen = top > -np.inf
    zero = xp.zeros_like(top)
    # Where neither side saw a key every exponent is 0 - 0, so that no inf - inf arises.
    top = xp.where(seen, top, zero)
    w1 = xp.exp(xp.where(seen, lse1, zero) - top)
    w2 = xp.exp(xp.where(seen, lse2, zero) - top)
    total = w1 + w2
    lse = xp.where(seen, xp.log(total) + top, zero - np.inf)
    f32 = xp.float32
    wide = (lambda a: a.to(f32)) if xp.__name__ == "torch" else (lambda a: a.astype(f32))
    share1, share2 = (xp.where(seen, w / total, zero) for w in (w1, w2))
    # A side without weight may hold anything in memory past what it was told to fill.
    parts = [xp.where(_rows(s) > 0, _rows(s) * wide(o), wide(xp.zeros_like(o)))
             for s, o in ((share1, o1), (share2, o2))]
    o = parts[0] + parts[1]
    return (o.to(o1.dtype) if xp.__name__ == "torch" else o.astype(o1.dtype)), lse
