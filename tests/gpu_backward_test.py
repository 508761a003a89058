#!/usr/bin/env python3
"""The GPU's gradients, on a Hopper card: gpu_backward_test.py path/to/libtilewise.so [seed [parts]]

Forward and backward of every kernel against float64 on the same (rounded) inputs, by the accuracy
rule for gradients (src/reference/accuracy.h): NaN-poisoned outputs and workspace, guard bands,
fresh random inputs, the seed printed. Then repeats that must be equal bit by bit."""
import itertools
import math
import sys

import torch

import gpu_test as g
from gpu_test import tw
from support.gpu_cases import (Packed, dropout_mask, failures, guards_hold, huge, inputs,
                               poisoned, run_parts)

NORM = {t: 3 * r for t, r in g.NORM.items()}


def gradients(case, d_o, d_lse, f, dtype, o=None):
    """{name: gradient} as a framework would compute them in `dtype`, and the same sums with every
    term positive. With `o`, delta comes from that O."""
    leaves = {n: case[n].to(dtype).detach().requires_grad_() for n in ("q", "k", "v", "bias")
              if n in case}
    t = {**case, **leaves}
    q, k, v = t["q"], t["k"], t["v"]
    extras = {n: t[n] for n in ("alibi_slopes", "bias") if n in t}
    s = g.scores_of(q, k, extras, f)
    groups = q.shape[2] // k.shape[2]
    with torch.no_grad():
        lse_s = s
        if "sink" in case:
            sink = case["sink"].to(dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)
            lse_s = torch.cat([s, sink], -1)
        lse = torch.logsumexp(lse_s, -1)
        p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
        d_o = d_o.to(dtype)
        wide_v = v.repeat_interleave(groups, 2)
        dp = torch.einsum("bihd,bjhd->bhij", d_o, wide_v)
        keep = f.get("keep")
        kept = torch.ones((), device=q.device, dtype=dtype) if keep is None else keep.to(dtype)
        delta = ((p * kept * dp).sum(-1) if o is None
                 else torch.einsum("bihd,bihd->bhi", d_o, o.to(dtype)))
        if d_lse is not None:
            delta = delta - d_lse.to(dtype)
        ds = p * (kept * dp - delta[..., None])
        most = p * (kept * dp.abs() + delta.abs()[..., None])

        def per_kv(x):
            return x.unflatten(2, (-1, groups)).sum(3)
        out = {"dv": per_kv(torch.einsum("bhij,bihd->bjhd", p * kept, d_o))}
        scale = abs(f.get("scale", q.shape[-1] ** -0.5))
        magnitude = {
            "dv": per_kv(torch.einsum("bhij,bihd->bjhd", p * kept, d_o.abs())),
            "dq": scale * torch.einsum("bhij,bjhd->bihd", most,
                                       k.abs().repeat_interleave(groups, 2)),
            "dk": scale * per_kv(torch.einsum("bhij,bihd->bjhd", most, q.abs()))}
        if "sink" in case:
            ps = torch.exp(sink[..., 0] - lse)
            out["dsink"] = -(ps * delta).sum((0, 2))
            magnitude["dsink"] = (ps * delta.abs()).sum((0, 2))
    wanted = [leaves[n] for n in ("q", "k", "bias") if n in leaves]
    found = torch.autograd.grad(s, wanted, ds)
    out.update(zip(("dq", "dk", "dbias"), found))
    if "bias" in leaves:
        with torch.no_grad():
            folded = most
            for i, n in enumerate(case["bias"].shape):
                if n == 1:
                    folded = folded.sum(i, keepdim=True)
            magnitude["dbias"] = folded
    return out, magnitude


def judge(name, got, ref, lows, magnitude):
    """Holds one gradient to the rule; true if it passes."""
    dtype = lows[0].dtype
    error, most = got.double() - ref, magnitude.double()
    if not torch.isfinite(got).all():
        failures.append(f"{name}: not finite")
        return
    if got.numel() == 0:
        return
    allowed = max(2 * max((low.double() - ref).abs().max().item() for low in lows) + 1e-5,
                  NORM[dtype] / 32 * most.max().item())
    size = max(ref.norm().item(), most.norm().item() / 32)
    norm = error.norm().item() / max(size, 1e-300)
    if error.abs().max().item() > allowed:
        failures.append(f"{name}: max error {error.abs().max().item():.3g} > {allowed:.3g}")
    elif norm > NORM[dtype]:
        failures.append(f"{name}: norm error {norm:.3g} > {NORM[dtype]:.3g}")


def launch(lib, case, f, d_lse=None, options=None, random=torch.randn_like):
    """Runs forward and backward on poisoned memory: (O, LSE, dO, {gradient}, its guards). `random`
    makes dO from O."""
    q, k, v = case["q"], case["k"], case["v"]
    fields = {n: x for n, x in f.items() if n != "keep"}
    seed = 7
    plan = lib.plan(case, **(options or {}), **fields)
    o = torch.full((*q.shape[:-1], v.shape[-1]), math.nan, dtype=q.dtype, device="cuda")
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda") if q.dim() == 4 else (
        torch.empty(q.shape[1], q.shape[0], device="cuda"))
    lib.forward(plan, case, o, lse, seed)()
    d_o = random(o)
    buffers, grads = {}, {}
    wanted = {"dq": q, "dk": k, "dv": v}
    if "sink" in case:
        wanted["dsink"] = case["sink"]
    if "bias" in case:
        wanted["dbias"] = case["bias"].float()
    for name, like in wanted.items():
        grads[name], buffers[name] = poisoned(like.shape, like.dtype)
    run = lib.backward(plan, case, {"o": o, "lse": lse, "d_o": d_o, "d_lse": d_lse, **grads},
                       seed)
    run.keep[3].view(torch.uint8).fill_(255)  # NaN
    run()
    torch.cuda.synchronize()
    run.buffers = buffers
    return o, lse, d_o, grads, run


def run_case(lib, name, case, f, d_lse=None, options=None):
    """One dense problem, held to the rule."""
    judge_case(name, case, f, d_lse, launch(lib, case, f, d_lse, options))


def judge_case(name, case, f, d_lse, launched):
    o, _, d_o, grads, run = launched
    for n, buffer in run.buffers.items():
        if not guards_hold(buffer):
            failures.append(f"{name}: wrote outside {n}")
    ref, magnitude = gradients(case, d_o, d_lse, f, torch.float64)
    dtype = case["q"].dtype
    low = gradients(case, d_o, d_lse, f, dtype)[0]
    low_o = gradients(case, d_o, d_lse, f, dtype, o)[0]
    for n, got in grads.items():
        lows = [low[n].to(dtype), low_o[n].to(dtype)]
        judge(f"{name} {n}", got, ref[n], lows, magnitude[n])


MASKS = [{}, {"causal": 1}, {"causal": 1, "align": 1}, {"window_left": 100, "window_right": 0},
         {"window_left": 3, "window_right": 5, "align": 1}, {"window_right": 17}]
HALF, BRAIN = torch.float16, torch.bfloat16
NARROW = [(64, 64, HALF), (64, 64, BRAIN), (128, 128, HALF), (128, 128, BRAIN), (96, 64, BRAIN)]
WIDE = [(256, 256, HALF), (256, 256, BRAIN), (192, 128, BRAIN)]


def dense_grid(lib, dims):
    shapes = [(1, 1, 1, 1, 1), (2, 3, 1, 64, 64), (1, 5, 5, 127, 129), (1, 6, 2, 200, 333),
              (2, 7, 1, 513, 512), (1, 2, 1, 700, 300), (1, 2, 1, 1, 1000), (1, 4, 4, 1024, 1024)]
    n = 0
    for d, dv, dtype in dims:
        for shape, f in itertools.product(shapes, MASKS):
            b, h, hk, sq, sk = shape
            kind = ("normal", "outliers", "constant", "large")[n % 4]
            if sq == 1 and sk > 1:
                b = 16  # a row by itself may have next to no gradient: draws are pooled
            case = {"q": inputs(kind, (b, sq, h, d), dtype), "k": inputs(kind, (b, sk, hk, d), dtype),
                    "v": inputs("normal", (b, sk, hk, dv), dtype)}
            run_case(lib, f"{kind} {dtype} d {d},{dv} {shape} {f} det {n // 4 % 2}", case, f,
                     options={"deterministic": n // 4 % 2})
            n += 1
    return n


def narrow_grid(lib):
    return dense_grid(lib, NARROW)


def wide_grid(lib):
    return dense_grid(lib, WIDE)


def far_grid(lib):
    """Rows of which few keys have a share: logits near 1e4 of both signs, and constant rows, as they
    are and moved by a bias that all keys share."""
    n = 0
    # Few rows are pooled: what rounding dS alone adds to constant rows then varies by a factor of 3.
    shapes = [(1, 4, 2, 200, 333), (8, 2, 1, 16, 4), (8, 2, 2, 16, 1000)]
    masks = ({}, {"causal": 1, "align": 1}, {"window_left": 7, "window_right": 0})
    for (d, dv, dtype), shape, f in itertools.product(NARROW + WIDE, shapes, masks):
        b, h, hk, sq, sk = shape
        options = {"deterministic": n % 2}
        name, v = f"{dtype} d {d},{dv} {shape} {f}", inputs("normal", (b, sk, hk, dv), dtype)
        for sign in (1, -1):
            case = {"q": huge("q", sign, (b, sq, h, d), dtype),
                    "k": huge("k", sign, (b, sk, hk, d), dtype), "v": v}
            run_case(lib, f"huge {sign} {name}", case, f, options=options)
        case = {"q": inputs("constant", (b, sq, h, d), dtype),
                "k": inputs("constant", (b, sk, hk, d), dtype), "v": v}
        for shift in (0, 100, -100):
            bias = torch.full((1, h, sq, 1), float(shift), device="cuda")
            moved = {"bias": bias} if shift else {}
            run_case(lib, f"constant {shift} {name}", {**case, **moved}, f, options=options)
        n += 1
    return 5 * n


def modified_grid(lib):
    """Scores that something is done to, dropout, and gradients through LSE."""
    n = 0
    masks = [{}, {"causal": 1}, {"window_left": 50, "window_right": 20}]
    kinds = [(128, BRAIN, masks[0]), (128, BRAIN, masks[1]), (64, HALF, masks[2]),
             (256, BRAIN, masks[1])]
    for d, dtype, f in kinds:
        b, h, hk, sq, sk = 2, 6, 3, 200, 333
        base = {"q": inputs("normal", (b, sq, h, d), dtype),
                "k": inputs("normal", (b, sk, hk, d), dtype),
                "v": inputs("normal", (b, sk, hk, d), dtype)}
        slopes = torch.rand(h, device="cuda") / 10
        bias = torch.randn(1, h, sq, sk, device="cuda")
        hidden = bias.masked_fill(torch.rand_like(bias) < 0.2, -math.inf)
        sink = torch.randn(h, device="cuda")
        d_lse = torch.randn(b, h, sq, device="cuda")
        dropout = {"dropout_p": 0.2, "keep": dropout_mask((b, h, sq, sk), 0.2, 7)}
        for extra, more, grad in (
                ({}, {"softcap": 20.0}, None), ({"alibi_slopes": slopes}, {}, None),
                ({"bias": bias}, {}, None), ({"bias": hidden.to(dtype)}, {}, None),
                ({"bias": bias[:, :1]}, {}, d_lse), ({"bias": bias[:, :, :1]}, {}, None),
                ({"bias": bias[:, :1, :, :1]}, {}, None), ({"bias": bias[:, :, :1, :1]}, {}, None),
                ({"sink": sink}, {}, None), ({}, {"has_scale": 1, "scale": -0.1}, None),
                ({}, {}, d_lse), ({"sink": sink}, {}, d_lse), ({}, dropout, None),
                ({"sink": sink, "alibi_slopes": slopes}, {"softcap": 5.0}, d_lse)):
            what = [k for k in more if k != "keep"]
            run_case(lib, f"{dtype} d {d} {list(extra)} {f} {what} d_lse {grad is not None}",
                     {**base, **extra}, {**f, **more}, grad)
            n += 1
    return n


def strided_grid(lib):
    """Q, K and V side by side, as one projection leaves them, and a transposed dO."""
    def transposed(o):
        return torch.randn_like(o.transpose(1, 2).contiguous()).transpose(1, 2)
    n = 0
    for (d, dv, dtype), f in itertools.product(NARROW + WIDE, ({}, {"causal": 1})):
        b, h, s = 2, 4, 300
        slices = inputs("normal", (b, s, h * (2 * d + dv)), dtype).split([h * d, h * d, h * dv], -1)
        case = {x: t.unflatten(-1, (h, -1)) for x, t in zip("qkv", slices)}
        judge_case(f"strided {dtype} d {d},{dv} {f}", case, f, None,
                   launch(lib, case, f, None, {"deterministic": n % 2}, transposed))
        n += 1
    return n


def packed_case(lib, name, packed, f, options):
    """Every sequence, held to the rule by itself, the smallest together; how many there were."""
    o, _, d_o, grads, _ = launch(lib, packed.case, {**f, **packed.sizes}, None, options)
    n, found = 0, {}
    for i, (a, used) in enumerate(packed.lengths):
        rows, used_rows, unused = packed.rows(i)
        for m in ("dk", "dv"):
            if (grads[m][unused] != 0).any():
                failures.append(f"{name} sequence {i} {m}: not 0 past seqused")
        one = packed.one(i)
        if a == 0 or used == 0:
            parts = (grads["dq"][rows], grads["dk"][used_rows], grads["dv"][used_rows])
            if any((x != 0).any() for x in parts):
                failures.append(f"{name} sequence {i}: not 0 beside an empty sequence")
            continue
        here = (d_o[None, rows], None, f)
        ref, magnitude = gradients(one, *here, torch.float64)
        low, low_o = (gradients(one, *here, o.dtype, x)[0] for x in (None, o[None, rows]))
        whose = "sequences of few queries" if a < 16 else f"sequence {i}"
        for m, own in (("dq", rows), ("dk", used_rows), ("dv", used_rows)):
            judged = grads[m][own], ref[m], low[m], low_o[m], magnitude[m]
            found.setdefault(f"{name} {whose} {m}", []).append([x.flatten() for x in judged])
        n += 1
    for what, parts in found.items():
        got, ref, low, low_o, magnitude = (torch.cat(x) for x in zip(*parts))
        judge(what, got, ref, [low, low_o], magnitude)
    return n


def packed_grid(lib):
    """cu_seqlens and seqused; everything that is not a sequence's own holds NaN. Then scores far
    below 0 beside such keys, and one long sequence among many tiny ones."""
    n = 0
    kinds = [(64, HALF), (128, BRAIN), (256, BRAIN)]
    masks = ({}, {"causal": 1}, {"window_left": 70, "window_right": 9})
    lengths = [0, 130, 1, 0, 257, 64, 0, 70], [5, 200, 0, 0, 257, 31, 3, 0]
    tiny = [i % 5 for i in range(150)]
    for (d, dtype), f in itertools.product(kinds, masks):
        options, name = {"deterministic": n % 2}, f"packed {dtype} d {d} {f}"
        packed = Packed(*lengths, (4, 2), (d, dtype))
        n += packed_case(lib, name, packed, f, options)
        packed.case["q"], packed.case["k"] = packed.case["q"].abs() * 20, -packed.case["k"].abs()
        n += packed_case(lib, f"{name}, LSE below -88", packed, f, options)
        long = Packed(tiny + [1500] + tiny, tiny[::-1] + [1300] + tiny, (4, 2), (d, dtype))
        n += packed_case(lib, f"{name}, one long", long, f, options)
    return n


def large(lib):
    """More than 2^31 numbers in each tensor: the ends of the first and the last head against the
    same rows by themselves, of which a window hides all that is cut off."""
    s, h, d, cut, kept = (1 << 17) + 256, 128, 128, 512, 256
    f = {"window_left": 64, "window_right": 0}
    case = {n: inputs("normal", (1, s, h, d), BRAIN) for n in "qkv"}
    for deterministic in (0, 1):
        o, _, d_o, grads, _ = launch(lib, case, f, None, {"deterministic": deterministic})
        for head in (slice(0, 1), slice(h - 1, h)):
            one = {n: t[:, -cut:, head] for n, t in case.items()}
            here = (d_o[:, -cut:, head], None, f)
            ref, magnitude = gradients(one, *here, torch.float64)
            lows = [gradients(one, *here, BRAIN, x)[0] for x in (None, o[:, -cut:, head])]
            for n, got in grads.items():
                judge(f"large {n} head {head.start} det {deterministic}", got[:, -kept:, head],
                      ref[n][:, -kept:], [low[n][:, -kept:] for low in lows],
                      magnitude[n][:, -kept:])
        del o, d_o, grads
    return 2


def repeated(lib, case, f, count, beside):
    """How many numbers of `count` deterministic runs differ from those of the first."""
    _, _, _, grads, run = launch(lib, case, f, None, {"deterministic": 1})
    first = {n: t.clone() for n, t in grads.items()}
    different = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(count):
        beside()
        for t in grads.values():
            t.fill_(math.nan)
        run()
        different += sum((t != first[n]).sum() for n, t in grads.items())
    return different.item()


def repeats(lib, count=1000):
    """Deterministic: the same bits, with other work beside it."""
    noise = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def beside():
        with torch.cuda.stream(side):
            noise @ noise
    n = 0
    masks = ({}, {"causal": 1}, {"window_left": 300})
    for d, f, hk in itertools.product((64, 128, 192, 256), masks, (8, 2)):
        for s, bias in ((1500, False), (300, True)):
            case = {n: inputs("normal", (2, s, 8 if n == "q" else hk, d), torch.bfloat16)
                    for n in "qkv"}
            if bias:
                case["bias"] = torch.randn(1, 8, s, s if hk == 8 else 1, device="cuda")
            if different := repeated(lib, case, f, count, beside):
                failures.append(f"repeats d {d} {f} {hk} bias {bias}: {different} numbers differ")
            n += 1
    return n


PARTS = (narrow_grid, wide_grid, far_grid, modified_grid, strided_grid, packed_grid, large, repeats)


if __name__ == "__main__":
    sys.exit(run_parts(tw.Library, PARTS))
