"""FlashAttention-3's functions: its signatures and defaults, tilewise's kernels.

num_splits, pack_gqa and sm_margin steer the original's kernels; tilewise's plan decides here.
"""
from __future__ import annotations

from typing import Any

import torch
from flash_attn._core import DENSE, Lengths, attend, refuse

import tilewise

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def _run(q: Any, k: Any, v: Any, lengths: Lengths, options: dict) -> Any:
    for name in ("qv", "q_descale", "k_descale", "v_descale", "attention_chunk"):
        refuse(name, options.pop(name, None))
    found = attend(q, k, v, lengths, options)
    return found[:2] if options["return_attn_probs"] else found


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None,
                    k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0,
                    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0,
                    return_attn_probs=False):
    """Attention of q (B, Sq, Hq, D) over k (B, Sk, Hkv, D) and v (B, Sk, Hkv, Dv). Returns out, with
    return_attn_probs (out, lse), lse float32 (B, Hq, Sq)."""
    return _run(q, k, v, DENSE, {
        "softmax_scale": softmax_scale, "causal": causal, "qv": qv, "q_descale": q_descale,
        "k_descale": k_descale, "v_descale": v_descale, "window_size": window_size,
        "attention_chunk": attention_chunk, "softcap": softcap, "deterministic": deterministic,
        "return_attn_probs": return_attn_probs})


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, qv=None,
                           q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
                           attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, sm_margin=0, return_attn_probs=False):
    """flash_attn_func over packed sequences, of which seqused rows are in use."""
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k)
    return _run(q, k, v, lengths, {
        "softmax_scale": softmax_scale, "causal": causal, "qv": qv, "q_descale": q_descale,
        "k_descale": k_descale, "v_descale": v_descale, "window_size": window_size,
        "attention_chunk": attention_chunk, "softcap": softcap, "deterministic": deterministic,
        "return_attn_probs": return_attn_probs})


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None,
                              v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                              deterministic=False, num_heads_q=None, sm_margin=0,
                              return_attn_probs=False):
    """flash_attn_func of one tensor: (B, S, 3, H, D), or (B, S, Hq + 2 Hkv, D) with num_heads_q."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
    else:
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads_kv, heads_kv], dim=-2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale,
                           window_size, attention_chunk, softcap, deterministic=deterministic,
                           return_attn_probs=return_attn_probs)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Joins partial results: out_partial float32 (splits, B, S, H, D), lse_partial float32
    (splits, B, S, H). Returns (out (B, S, H, D), lse (B, S, H))."""
    if out_partial.dtype != torch.float32 or lse_partial.dtype != torch.float32:
        raise RuntimeError("Attention combine function only support fp32 data type")
    joined, lse = out_partial[0], lse_partial[0].transpose(1, 2)
    for part, part_lse in zip(out_partial[1:], lse_partial[1:]):
        joined, lse = tilewise.merge(joined, lse, part, part_lse.transpose(1, 2))
    joined = joined.to(out_dtype or (joined.dtype if out is None else out.dtype))
    if out is not None:
        joined = out.copy_(joined)
    return joined, lse.transpose(1, 2)


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Any:
    """Not there yet: it comes with tilewise's decoding kernels."""
    raise NotImplementedError("flash_attn_with_kvcache waits for tilewise's decode; accepted: the other "
                              "functions of flash_attn_interface, or tilewise.attention with seqused_kv")
