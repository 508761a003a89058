"""Standard attention in torch, by docs/semantics.md and in any dtype, and the accuracy rule of the
project: in float64 it is the oracle, in the inputs' dtype it is the yardstick. Autograd gives both
their gradients."""
import functools
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


class _FromRounded(torch.autograd.Function):
    """(p, v) -> p v, whose gradient is carried out as every backward of attention does: from an O that
    was rounded to its dtype, dS = p (dP - rowsum(dO O)). Hands on dS where the gradient of p is asked
    for; `attention` gives it scores."""

    @staticmethod
    def forward(ctx, scores, p, v):
        o = torch.einsum("bhij,bjhd->bihd", p, v)
        ctx.save_for_backward(p, v, o)
        return o

    @staticmethod
    def backward(ctx, d_o):
        p, v, o = ctx.saved_tensors
        d_p = torch.einsum("bihd,bjhd->bhij", d_o, v)
        delta = (d_o * o).sum(-1).transpose(1, 2)[..., None]
        return p * (d_p - delta), None, torch.einsum("bhij,bihd->bjhd", p, d_o)


def attention(q, k, v, dtype, *, scale=None, softcap=0.0, alibi_slopes=None, bias=None, sink=None,
              from_rounded=False, **mask):
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
    if from_rounded:
        # The sink's column has no value: its dS is -p rowsum(dO O), as that of a key with v = 0.
        columns_p = torch.exp(columns - lse.masked_fill(empty, 0.0)[..., None])
        v = v if sink is None else torch.cat([v, torch.zeros_like(v[:, :1])], 1)
        return _FromRounded.apply(columns, columns_p.detach(), v), lse
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


class Errors:
    """What was seen of one tensor, over one draw of the inputs or several."""

    def __init__(self):
        self.worst = self.allowed = self.squares = self.ref_squares = 0.0

    def add(self, out, ref, lows):
        out, ref, *lows = (t.detach().double().cpu() for t in (out, ref, *lows))
        assert torch.equal(out.isfinite(), ref.isfinite()), "inf or NaN elsewhere than the oracle"
        fine = ref.isfinite()
        out, ref, *lows = out[fine], ref[fine], *(low[fine].nan_to_num() for low in lows)
        if not ref.numel():
            return
        self.worst = max(self.worst, (out - ref).abs().max().item())
        self.allowed = max(self.allowed, *((low - ref).abs().max().item() for low in lows))
        self.squares += (out - ref).square().sum().item()
        self.ref_squares += ref.square().sum().item()

    def fault(self, bound):
        """What is wrong, "" for nothing. `bound`: of the relative error."""
        allowed, norm = 2 * self.allowed + 1e-5, math.sqrt(self.squares / max(self.ref_squares, 1e-60))
        if self.worst > allowed:
            return f"max error {self.worst:.3g}, accepted {allowed:.3g}"
        # Where the whole result is rounding noise the maximum alone decides.
        if norm > bound and self.worst > 1e-5:
            return f"relative error {norm:.3g}, accepted {bound:.3g}"
        return ""


def hold(draw, dtype):
    """Asserts the accuracy rule of inputs of `dtype`. draw() -> [(what, out, ref, *lows)] of new inputs:
    the low with the largest error counts; what begins with "d" is a gradient, and may have three times
    the relative error. A maximum over few numbers is luck, low's too: a failure is judged again over
    more draws, with the same bounds."""
    seen, faults, draws = {}, [], 1
    while draws <= 64:
        for _ in range(draws):
            for what, out, ref, *lows in draw():
                seen.setdefault(what, Errors()).add(out, ref, lows)
        faults = [f"{what}: {fault}" for what, errors in seen.items()
                  if (fault := errors.fault(NORM[dtype] * (3 if what[0] == "d" else 1)))]
        if not faults:
            return
        draws *= 2
    raise AssertionError("; ".join(faults))


def same(device, mine, theirs):
    """Bitwise on the CPU. A GPU's gradients are summed in an order that varies from run to run."""
    for a, b in zip(mine, theirs, strict=True):
        if device == "cpu":
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def redraw(tensors):
    """New normal numbers in what has a gradient."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(torch.randn_like(tensor))


def results_of(attend, tensors, d_o, d_lse):
    """[O, LSE, gradients of `tensors`] of attend() -> (O, LSE)."""
    o, lse = attend()
    seen = lse.masked_fill(lse == -math.inf, 0.0)
    return [o, lse, *torch.autograd.grad((o, seen), tensors, (d_o.to(o.dtype), d_lse.to(lse.dtype)))]


def check(run, tensors, terms):
    """Holds `run(**tensors, **terms) -> (o, lse)` to the rule, forward and backward.

    tensors: q, k, v and perhaps bias, sink, alibi_slopes; those that require grad are compared.
    """
    wanted = {n: t for n, t in tensors.items() if t.requires_grad}
    dtype = tensors["q"].dtype

    def draw():
        redraw(wanted.values())
        o, lse = run(**tensors, **terms)
        d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
        mine = [o, lse, *torch.autograd.grad((o, lse), list(wanted.values()), (d_o, d_lse))]
        others = [results_of(functools.partial(attention, **tensors, **terms, dtype=kind,
                                               from_rounded=rounded), list(wanted.values()), d_o, d_lse)
                  for kind, rounded in ((torch.float64, False), (dtype, False), (dtype, True))]
        return list(zip(("o", "lse", *("d" + n for n in wanted)), mine, *others))
    hold(draw, dtype)
