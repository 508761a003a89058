"""Between padded (B, S, ...) and packed (total, ...) tensors, by a mask of what is in use."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def index_first_axis(input, indices):
    """The rows `indices` of input's first dimension."""
    return input.index_select(0, indices)


def index_put_first_axis(values, indices, first_axis_dim):
    """A tensor of first_axis_dim rows, zero but for `values` at rows `indices`."""
    out = values.new_zeros(first_axis_dim, *values.shape[1:])
    return out.index_copy(0, indices, values)


def _packing(in_use: Tensor, lengths: Tensor) -> tuple:
    """(indices into the flat padded rows, cu_seqlens int32 (n + 1), longest)."""
    indices = in_use.flatten().nonzero().flatten()
    cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return indices, cu_seqlens, int(lengths.max()) if lengths.numel() else 0


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """Packs what attention_mask (B, S) marks, and what unused_mask (B, S) allocates besides.

    Returns (rows (total, ...), indices (total), cu_seqlens int32 (B + 1), longest, seqused int32 (B)).
    """
    allocated = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = allocated.sum(-1, dtype=torch.int32)
    indices, cu_seqlens, longest = _packing(allocated, lengths)
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cu_seqlens, longest, attention_mask.sum(-1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """unpad_input for rows that hold several samples: attention_mask_in_length (B, S) lists the samples'
    lengths in each row, then zeros. Returns (rows, indices, cu_seqlens, longest)."""
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    places = torch.arange(attention_mask_in_length.shape[1], device=filled.device)
    lengths = attention_mask_in_length[attention_mask_in_length > 0].to(torch.int32)
    indices, cu_seqlens, longest = _packing(places < filled, lengths)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def pad_input(hidden_states, indices, batch, seqlen):
    """Undoes unpad_input: (total, ...) to (batch, seqlen, ...), zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
