"""Rotary position embedding (Su et al. 2021) of queries and keys."""
from __future__ import annotations

import torch
from torch import Tensor


def _angles(table: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """Rows of cos or sin at each place, as wide as what they turn, with a dimension for the heads."""
    rows = table[places]
    rows = rows.repeat_interleave(2, -1) if interleaved else torch.cat([rows, rows], -1)
    return rows.unsqueeze(-2).float()


def _turned(x: Tensor, interleaved: bool) -> Tensor:
    """Each pair (a, b) becomes (-b, a). Pairs are neighbours, or half the width apart."""
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([-b, a], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def _places(x: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The position of each row of x in its sequence: (S), (B, S) or (total)."""
    if cu_seqlens is None:
        places = torch.arange(x.shape[1], device=x.device)
        return places + (offsets[:, None] if isinstance(offsets, Tensor) else offsets)
    everywhere = torch.arange(x.shape[0], device=x.device)
    starts = cu_seqlens.long()
    sequence = torch.searchsorted(starts, everywhere, right=True) - 1
    places = everywhere - starts[sequence]
    return places + (offsets[sequence] if isinstance(offsets, Tensor) else offsets)


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0,
                     cu_seqlens=None, max_seqlen=None):
    """Turns the first 2 * cos.shape[-1] entries of each head by the angles of its position.

    x: (B, S, H, D), or (total, H, D) with cu_seqlens int32 (B + 1) (and max_seqlen). cos, sin: (places,
    width / 2). seqlen_offsets: where each sequence starts, an int or (B). Computed in float32,
    returned in x's dtype; inplace writes into x.
    """
    width = 2 * cos.shape[-1]
    if width > x.shape[-1]:
        raise RuntimeError(f"cos has width {cos.shape[-1]}; accepted: at most half of x's last "
                           f"dimension, {x.shape[-1]}")
    places = _places(x, seqlen_offsets, cu_seqlens)
    head = x[..., :width].float()
    out = head * _angles(cos, places, interleaved) + _turned(head, interleaved) * _angles(
        sin, places, interleaved)
    out = out.to(x.dtype)
    if inplace:
        x[..., :width] = out
        return x
    return torch.cat([out, x[..., width:]], -1) if width < x.shape[-1] else out


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """apply_rotary_emb of (B, S, H, D) from position 0."""
    return apply_rotary_emb(x, cos[:x.shape[1]], sin[:x.shape[1]], interleaved)
