"""Importing this registers torch.ops.tilewise: for programs that name the operators before the first
call of tilewise.attention, such as one that torch.export wrote.

    import tilewise.torch
"""
from . import _torch  # noqa: F401
