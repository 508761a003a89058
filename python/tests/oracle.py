"""Standard attention in torch, by docs/semantics.md and in any dtype, and the accuracy rule of the
project: in float64 it is the oracle, in the inputs' dtype it is the yardstick. Autograd gives both
their gradients."""
import math

import torch

NORM = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def visible(seq_q, seq_kv, causal=False, window=None, align="bottom-right"):
    """(Sq, Sk), True where key j may be seen from query i."""
    off = seq_kv - seq_q if align == "bottom-right" else 0
    distance = torch.arange(seq_kv)[None, :] - torch.arange(seq_q)[:, None] - off
    keep = torch.ones(seq_q, seq_kv, dtype=torch.bool)
    left, right = window or (-1, -1)
    if left >= 0:
        keep &= distance >= -left
    if right >= 0:
        keep &= distance <= right
    if causal:
        keep &= distance <= 0
    return keep, distance


def attention(q, k, v, dtype, *, scale=None, softcap=0.0, alibi_slopes=None, bias=None, sink=None,
              **mask):
    """(O, LSE) computed in `dtype`. q, k, v: (B, S, H, D)."""
    q, k, v = (t.to(dtype) for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    keep, distance = (t.to(q.device) for t in visible(q.shape[1], k.shape[1], **mask))
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(dtype)
        slopes = slopes[:, :, None, None] if slopes.dim() == 2 else slopes[None, :, None, None]
        s = s - slopes * distance.abs().to(dtype)
    if bias is not None:
        s = s + bias.to(dtype)
    s = s.masked_fill(~keep, -math.inf)
    columns = s if sink is None else torch.cat(
        [s, sink.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    if columns.shape[-1] == 0:
        lse = s.new_full(s.shape[:3], -math.inf)
    else:
        lse = torch.logsumexp(columns, -1)
    empty = lse == -math.inf
    p = torch.exp(s - lse.masked_fill(empty, 0.0)[..., None])
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def judge(what, out, ref, low, *, dtype=None, factor=1.0):
    """Asserts the accuracy rule. `factor` is 3 for gradients."""
    dtype = dtype or out.dtype
    out, ref, low = (t.detach().double().cpu() for t in (out, ref, low))
    assert torch.equal(out.isfinite(), ref.isfinite()), f"{what}: inf or NaN elsewhere than the oracle"
    fine = ref.isfinite()
    out, ref, low = out[fine], ref[fine], low[fine].nan_to_num()
    if not ref.numel():
        return
    worst, bound = (out - ref).abs().max(), 2 * (low - ref).abs().max() + 1e-5
    assert worst <= bound, f"{what}: max error {worst:.3g}, accepted {bound:.3g}"
    norm = (out - ref).norm() / ref.norm().clamp_min(1e-30)
    # Where the whole result is rounding noise the maximum alone decides.
    assert norm <= factor * NORM[dtype] or worst <= 1e-5, f"{what}: relative error {norm:.3g}"


def same(device, mine, theirs):
    """Bitwise on the CPU. A GPU's gradients are summed in an order that varies from run to run."""
    for a, b in zip(mine, theirs, strict=True):
        if device == "cpu":
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def check(run, tensors, terms, *, grads=True):
    """Runs `run(**tensors, **terms) -> (o, lse)` against the oracle, forward and backward.

    tensors: q, k, v and perhaps bias, sink, alibi_slopes; those that require grad are compared.
    """
    names = [n for n, t in tensors.items() if t.requires_grad]
    o, lse = run(**tensors, **terms)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    results = {"mine": (o, lse)}
    for kind, dtype in (("ref", torch.float64), ("low", tensors["q"].dtype)):
        results[kind] = attention(**tensors, **terms, dtype=dtype)
    found = {}
    for kind, (x, y) in results.items():
        if not grads:
            break
        wanted = [tensors[n] for n in names]
        y = y.masked_fill(y == -math.inf, 0.0) if kind != "mine" else y
        found[kind] = torch.autograd.grad((x, y), wanted, (d_o.to(x.dtype), d_lse.to(y.dtype)))
    judge("o", o, results["ref"][0], results["low"][0])
    judge("lse", lse, results["ref"][1], results["low"][1], dtype=o.dtype)
    for i, name in enumerate(names if grads else ()):
        judge("d" + name, *(found[kind][i] for kind in ("mine", "ref", "low")), dtype=o.dtype,
              factor=3)
