"""Exact attention, one tile at a time, on the arrays of NumPy, PyTorch, JAX and CuPy.

    import tilewise
    o = tilewise.attention(q, k, v, causal=True)           # (B, S, H, D)
    print(tilewise.plan(q, k, v, causal=True))             # what runs, and why

docs/python.md has the whole story, docs/semantics.md the formulas.
"""
import sys

from ._attention import Gradients, attention, attention_backward, attention_varlen
from ._merge import merge
from ._native import version as __version__
from ._plan import Plan, isas, kernels, plan

__all__ = ["Gradients", "Plan", "attention", "attention_backward", "attention_varlen", "isas",
           "kernels", "merge", "plan", "__version__"]

if "torch" in sys.modules:
    from . import _torch  # registers torch.ops.tilewise; otherwise the first torch tensor does
