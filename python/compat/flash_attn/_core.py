"""What every function of the drop-in comes down to: one call of tilewise, with flash-attn's conventions
for rounding head dims, for errors and for the matrix of probabilities.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import tilewise


class Lengths(NamedTuple):
    """Packed sequences; all None for dense ones."""

    cu_q: Tensor | None = None
    cu_k: Tensor | None = None
    max_q: int | None = None
    max_k: int | None = None
    used_q: Tensor | None = None
    used_k: Tensor | None = None


DENSE = Lengths()


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """flash-attn's conditions, in its words and with its exception, where they hold here too."""
    half = (torch.float16, torch.bfloat16)
    if q.dtype not in half and not (q.device.type == "cpu" and q.dtype == torch.float32):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    for tensor, word in ((k, "key"), (v, "value")):
        if tensor.dtype != q.dtype:
            raise RuntimeError(f"query and {word} must have the same dtype")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")
    if q.is_cuda and q.shape[-1] > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def _rows(tensor: Tensor) -> Tensor:
    """The last dimension contiguous and, as GPU kernels want it, a multiple of 8."""
    if tensor.is_cuda and tensor.shape[-1] % 8:
        tensor = F.pad(tensor, (0, -tensor.shape[-1] % 8))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _narrow(out: Tensor, head_dim_v: int) -> Tensor:
    return out if out.shape[-1] == head_dim_v else out[..., :head_dim_v]


def _call(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, options: dict) -> Any:
    try:
        if lengths.cu_q is None:
            return tilewise.attention(q, k, v, **options)
        return tilewise.attention_varlen(
            q, k, v, lengths.cu_q, lengths.cu_k, max_seqlen_q=lengths.max_q,
            max_seqlen_kv=lengths.max_k, seqused_q=lengths.used_q, seqused_kv=lengths.used_k,
            **options)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from error  # flash-attn's checks raise nothing else


def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, options: dict) -> Any:
    """What a function returns: out, or with return_attn_probs (out, lse, probabilities). `options` are
    flash-attn's, by its names."""
    _check(q, k, v)
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    scale, dropout = options["softmax_scale"], options.get("dropout_p", 0.0)
    words = {"causal": options["causal"],
             "window": tuple(max(side, -1) for side in options["window_size"]),
             "softcap": max(options["softcap"], 0.0), "dropout_p": dropout,
             "scale": head_dim**-0.5 if scale is None else scale,
             "alibi_slopes": options.get("alibi_slopes"), "deterministic": options["deterministic"]}
    q, k, v = _rows(q), _rows(k), _rows(v)
    if not options["return_attn_probs"]:
        return _narrow(_call(q, k, v, lengths, words), head_dim_v)
    if dropout > 0:  # drawn here, so that the probabilities are those of out
        words["seed"] = int(torch.randint(0, 1 << 62, (), dtype=torch.int64))
    out, lse = _call(q, k, v, lengths, words | {"return_lse": True})
    probabilities = _probabilities(q, k, lengths, words) if dropout > 0 else q.new_empty(0)
    return _narrow(out, head_dim_v), lse, probabilities


_COLUMNS = 256


@torch.no_grad()
def _probabilities(q: Tensor, k: Tensor, lengths: Lengths, words: dict) -> Tensor:
    """(B, Hq, Sq, Sk), both lengths rounded up to 128: the probabilities, negative where dropped.

    Attention over values that are one-hot in the key's number is the matrix itself, 256 columns at a
    time. It takes the memory that attention is meant to save; only tests ask for it.
    """
    packed = lengths.cu_q is not None
    seq_q, seq_k = (lengths.max_q, lengths.max_k) if packed else (q.shape[1], k.shape[1])
    batch = lengths.cu_q.shape[0] - 1 if packed else q.shape[0]
    kept_words = {n: w for n, w in words.items() if n not in ("dropout_p", "seed")}
    out = q.new_zeros(batch, q.shape[-2], -(-seq_q // 128) * 128, -(-seq_k // 128) * 128)
    numbers = torch.arange(seq_k, device=q.device)
    if packed:  # each key's number inside its sequence
        everywhere = torch.arange(k.shape[0], device=q.device)
        starts = lengths.cu_k.long()
        numbers = everywhere - starts[torch.searchsorted(starts, everywhere, right=True) - 1]
    for first in range(0, seq_k, _COLUMNS):
        count = min(_COLUMNS, seq_k - first)
        columns = torch.arange(first, first + -(-count // 8) * 8, device=q.device)
        one_hot = (numbers[:, None] == columns).to(q.dtype)
        v = one_hot[:, None].expand(-1, k.shape[-2], -1)
        v = (v if packed else v.expand(batch, *v.shape)).contiguous()
        plain = _call(q, k, v, lengths, kept_words)[..., :count]
        signed = torch.where(_call(q, k, v, lengths, words)[..., :count] > 0, plain, -plain)
        if not packed:
            out[:, :, :seq_q, first:first + count] = signed.transpose(1, 2)
            continue
        for b, (a, z) in enumerate(zip(lengths.cu_q.tolist(), lengths.cu_q.tolist()[1:])):
            out[b, :, :z - a, first:first + count] = signed[a:z].transpose(0, 1)
    return out


def refuse(name: str, value: Any) -> None:
    """For arguments of features that tilewise does not have yet."""
    if value is not None and (isinstance(value, Tensor) or value):
        raise NotImplementedError(f"{name} is given; accepted by tilewise's flash_attn: it left out")
