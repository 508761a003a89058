"""Hugging Face Transformers: importing this registers the attention implementation "tilewise".

    import tilewise.transformers
    model = AutoModel.from_pretrained(name, attn_implementation="tilewise")

Transformers asks twice: once per forward for a mask, then in each layer for the attention. The mask of
a plain causal, sliding or bidirectional layer is never written out: it is None, or the padding alone,
(B, 1) int32 lengths where every row is padded on the right and else (B, Sk) float32 with -inf on the
padding. Any other pattern (packed, blockwise, chunked, a static cache) comes as the full additive
(B, 1, Sq, Sk).
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from ._attention import attention

NAME = "tilewise"


def _parts(mask_function: Any) -> list:
    """The functions that transformers' and_masks joined, or the function itself."""
    if getattr(mask_function, "__qualname__", "") != "and_masks.<locals>.and_mask":
        return [mask_function]
    joined = [c.cell_contents for c in mask_function.__closure__]
    return [part for item in joined if isinstance(item, tuple) for part in item]


def _plain(mask_function: Any) -> bool | None:
    """True for a causal pattern, False for a bidirectional one, each with or without a sliding window;
    None for anything else."""
    causal = None
    for part in _parts(mask_function):
        if part in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
            causal = part is masking_utils.causal_mask_function
        elif getattr(part, "__qualname__", "").removesuffix(".<locals>.inner_mask") not in (
                "sliding_window_overlay", "sliding_window_bidirectional_overlay"):
            return None
    return causal


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


def _padding(visible: Tensor, square: bool) -> Tensor | None:
    """(B, Sk) bool -> None, (B, 1) lengths or (B, Sk) additive."""
    if torch.compiler.is_compiling():
        return _additive(visible, torch.float32)  # the values are not to be looked at
    if visible.all():
        return None
    lengths = visible.sum(1, keepdim=True, dtype=torch.int32)
    places = torch.arange(visible.shape[1], device=visible.device)
    if square and torch.equal(visible, places < lengths):
        return lengths
    return _additive(visible, torch.float32)


def tilewise_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                  kv_offset: Any = 0, mask_function: Any = masking_utils.causal_mask_function,
                  **more: Any) -> Tensor | None:
    """What a model of this implementation gets as its attention_mask; see the head of the file."""
    causal = _plain(mask_function)
    level = (isinstance(q_offset, int) and isinstance(kv_offset, int)
             and q_offset - kv_offset + q_length == kv_length)
    padding: Any = more.get("attention_mask")
    if padding is not None:
        padding = masking_utils.prepare_padding_mask(padding, kv_length, kv_offset)
        padding = padding[:, kv_offset:kv_offset + kv_length] if isinstance(kv_offset, int) else None
    fits = more.get("attention_mask") is None or (padding is not None
                                                  and padding.shape[1] == kv_length)
    if causal is not None and (level or not causal) and fits and not more.get("use_vmap"):
        if padding is None:
            return None
        return _padding(padding, q_length == kv_length and q_offset == kv_offset)
    more.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    visible = masking_utils.sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length,
                                      q_offset=q_offset, kv_offset=kv_offset,
                                      mask_function=mask_function, **more)
    return _additive(visible, more.get("dtype") or torch.float32)


def _bias(mask: Tensor | None, position_bias: Tensor | None) -> Tensor | None:
    """The additive bias of the mask and of the positions (T5), broadcast over (B, Hq, Sq, Sk)."""
    bias = None
    if mask is not None and mask.dtype != torch.int32:
        bias = mask[:, None, None, :] if mask.dim() == 2 else mask
        if bias.dtype == torch.bool:
            bias = _additive(bias, torch.float32)
    if position_bias is None:
        return bias
    return position_bias if bias is None else position_bias + bias


def tilewise_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                       attention_mask: Tensor | None = None, *, dropout: float = 0.0,
                       scaling: float | None = None, is_causal: bool | None = None,
                       sliding_window: int | None = None, softcap: float | None = None,
                       s_aux: Tensor | None = None, position_bias: Tensor | None = None,
                       output_attentions: bool = False, **_: Any) -> tuple[Tensor, None]:
    """Transformers' attention interface. query, key, value: (B, H, S, D). Returns (B, Sq, Hq, Dv), and
    None for the probabilities, which are never formed.

    Raises:
        ValueError: output_attentions, which only attn_implementation="eager" can give.
        As tilewise.attention.
    """
    if output_attentions:
        raise ValueError("output_attentions is True; accepted with attn_implementation=\"tilewise\": "
                         "False (the probabilities are never formed; \"eager\" has them)")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    whole = attention_mask is not None and attention_mask.dim() == 4  # it holds the pattern too
    lengths = None
    if attention_mask is not None and attention_mask.dtype == torch.int32:
        lengths = attention_mask.view(-1)
    window = None
    if sliding_window is not None and not whole:
        window = (sliding_window - 1, -1 if is_causal else sliding_window - 1)
    out = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                    causal=is_causal and not whole, window=window, scale=scaling,
                    softcap=softcap or 0.0, bias=_bias(attention_mask, position_bias),
                    sink=None if s_aux is None else s_aux.float(), seqused_kv=lengths,
                    align="bottom-right" if lengths is None else "top-left", dropout_p=dropout)
    return out, None


AttentionInterface.register(NAME, tilewise_attention)
AttentionMaskInterface.register(NAME, tilewise_mask)
