"""FlashAttention 2.8's functions: its signatures and defaults, tilewise's kernels.

Tensors are (B, S, H, D), or (total, H, D) with cu_seqlens int32 (B + 1). return_attn_probs adds LSE,
float32 (B, H, S) or (H, total), and the probabilities (with dropout; else an empty tensor).
"""
from __future__ import annotations

from typing import Any

from ._core import DENSE, Lengths, attend, refuse


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of q (B, Sq, Hq, D) over k and v (B, Sk, Hkv, D); Hkv divides Hq."""
    return _dense(q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                  window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
                  deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False,
                             window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                             deterministic=False, return_attn_probs=False):
    """flash_attn_func with k and v in one tensor, (B, Sk, 2, Hkv, D)."""
    return _dense(q, *kv.unbind(-3), dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                  window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
                  deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False,
                              window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                              deterministic=False, return_attn_probs=False):
    """flash_attn_func with q, k and v in one tensor, (B, S, 3, H, D)."""
    return _dense(*qkv.unbind(-3), dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                  window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
                  deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                           softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None):
    """Attention over packed sequences: q (total_q, Hq, D), k and v (total_k, Hkv, D)."""
    refuse("block_table", block_table)
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _packed(q, k, v, lengths, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                   window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
                   deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                    dropout_p=0.0, softmax_scale=None, causal=False,
                                    window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                                    deterministic=False, return_attn_probs=False):
    """flash_attn_varlen_func with k and v in one tensor, (total_k, 2, Hkv, D)."""
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _packed(q, *kv.unbind(-3), lengths, dropout_p=dropout_p, softmax_scale=softmax_scale,
                   causal=causal, window_size=window_size, softcap=softcap,
                   alibi_slopes=alibi_slopes, deterministic=deterministic,
                   return_attn_probs=return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None,
                                     causal=False, window_size=(-1, -1), softcap=0.0,
                                     alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False):
    """flash_attn_varlen_func with q, k and v in one tensor, (total, 3, H, D)."""
    lengths = Lengths(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _packed(*qkv.unbind(-3), lengths, dropout_p=dropout_p, softmax_scale=softmax_scale,
                   causal=causal, window_size=window_size, softcap=softcap,
                   alibi_slopes=alibi_slopes, deterministic=deterministic,
                   return_attn_probs=return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None,
                            block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    """Not there yet: it comes with tilewise's decoding kernels."""
    raise NotImplementedError("flash_attn_with_kvcache waits for tilewise's decode; accepted: the other "
                              "functions of flash_attn, or tilewise.attention with seqused_kv")


def _dense(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return attend(q, k, v, DENSE, options)


def _packed(q: Any, k: Any, v: Any, lengths: Lengths, **options: Any) -> Any:
    return attend(q, k, v, lengths, options)
