#!/usr/bin/env python3
"""The GPU's accuracy grid, on a Hopper card: gpu_test.py path/to/libtilewise.so

Every kernel against float64 on the same (rounded) inputs, by the accuracy rule of
docs/semantics.md: NaN-poisoned outputs with guard bands, fresh random inputs, the seed printed.
Then repeats that must be equal bit by bit, other streams, graph replay, and bad input."""
import itertools
import math
import pathlib
import sys

import torch
from support.gpu_cases import (Packed, dropout_mask, failures, guards_hold, inputs, poisoned,
                               run_parts)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import tilewise_torch as tw  # noqa: E402

NORM = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def scores_of(q, k, tensors, f):
    """Scores (B, H, Sq, Sk) with every modification, in q's dtype; hidden ones -inf."""
    heads, sq, sk = q.shape[2], q.shape[1], k.shape[1]
    k = k.repeat_interleave(heads // k.shape[2], 2)
    scale = f.get("scale", q.shape[-1] ** -0.5)
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if cap := f.get("softcap", 0):
        s = cap * torch.tanh(s / cap)
    off = 0 if f.get("align") else sk - sq
    i = torch.arange(sq, device=q.device)[:, None] + off
    j = torch.arange(sk, device=q.device)[None]
    if "alibi_slopes" in tensors:
        slopes = tensors["alibi_slopes"].to(s.dtype).view(-1, heads, 1, 1)
        s = s - slopes * (i - j).abs()
    if "bias" in tensors:
        s = s + tensors["bias"].to(s.dtype)
    keep = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    left, right = f.get("window_left", -1), f.get("window_right", -1)
    if left >= 0:
        keep &= j >= i - left
    if right >= 0:
        keep &= j <= i + right
    if f.get("causal"):
        keep &= j <= i
    return s.masked_fill(~keep, -math.inf)


def attention(q, k, v, tensors, f, dtype):
    """(O, LSE) as a framework would compute them, in `dtype`."""
    q, k, v = (t.to(dtype) for t in (q, k, v))
    s = scores_of(q, k, tensors, f)
    lse_s = s
    if "sink" in tensors:
        sink = tensors["sink"].to(dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        lse_s = torch.cat([s, sink], -1)
    lse = torch.logsumexp(lse_s, -1)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
    if (keep := f.get("keep")) is not None:
        p = p * keep.to(dtype)
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def largest_terms(q, k, tensors, f):
    """(B, H, Sq): the largest sum of |terms| of a score that each row sees, as the rule for LSE has it
    (src/reference/accuracy.h)."""
    if k.shape[1] == 0:
        return torch.zeros(q.shape[0], q.shape[2], q.shape[1], device=q.device)
    f = {**f, "softcap": 0, "scale": abs(f.get("scale", q.shape[-1] ** -0.5))}
    terms = {}
    if "alibi_slopes" in tensors:
        terms["alibi_slopes"] = -tensors["alibi_slopes"].abs()
    if "bias" in tensors:
        bias = tensors["bias"].float()
        terms["bias"] = bias.abs().masked_fill(bias == -math.inf, -math.inf)
    return scores_of(q.float().abs(), k.float().abs(), terms, f).amax(-1).clamp_min(0)


def verdict(name, o, lse, ref, low, terms):
    """Holds one result to the rule."""
    (ref_o, ref_lse), low_o = ref, low[0].double()
    problems = []
    if torch.isnan(o).any():
        problems.append("NaN in O")
    if not torch.equal(torch.isinf(lse), torch.isinf(ref_lse)):
        problems.append("-inf of LSE misplaced")
    error = (o.double() - ref_o)
    bound = 2 * (low_o - ref_o).abs().max().item() + 1e-5
    norm = (error.norm() / ref_o.norm().clamp_min(1e-300)).item()
    if error.abs().max().item() > bound:
        problems.append(f"max error {error.abs().max().item():.3g} > {bound:.3g}")
    if norm > NORM[o.dtype]:
        problems.append(f"norm error {norm:.3g} > {NORM[o.dtype]:.3g}")
    finite = torch.isfinite(ref_lse)
    if finite.any():
        size = torch.maximum(ref_lse.abs(), terms.double())
        over = ((lse.double() - ref_lse).abs() - 2e-6 * size)[finite].max().item()
        if over > 1e-5:
            problems.append(f"LSE off by {over:.3g} more than 2e-6 of up to {size[finite].max():.3g}")
    if problems:
        failures.append(f"{name}: {'; '.join(problems)}")
    return norm


def run_case(lib, name, dense, f):
    """One dense problem: our O and LSE against float64 and against eager in the input dtype."""
    q, k, v = dense["q"], dense["k"], dense["v"]
    shape = (*q.shape[:3], v.shape[3])
    o, o_buffer = poisoned(shape, q.dtype)
    lse, lse_buffer = poisoned((q.shape[0], q.shape[2], q.shape[1]), torch.float32)
    lib.forward(lib.plan(dense, **f), dense, o, lse)()
    torch.cuda.synchronize()
    if not guards_hold(o_buffer) or not guards_hold(lse_buffer):
        failures.append(f"{name}: wrote outside its output")
    ref = attention(q, k, v, dense, f, torch.float64)
    return verdict(name, o, lse, ref, attention(q, k, v, dense, f, q.dtype),
                   largest_terms(q, k, dense, f))


def dense_grid(lib):
    shapes = [(1, 1, 1, 1, 1), (2, 3, 1, 64, 64), (1, 5, 5, 127, 129), (1, 6, 2, 200, 333),
              (2, 7, 1, 513, 512), (1, 2, 1, 700, 300), (1, 2, 1, 1, 1000), (1, 4, 4, 1024, 1024)]
    masks = [{}, {"causal": 1}, {"causal": 1, "align": 1}, {"window_left": 100, "window_right": 0},
             {"window_left": 3, "window_right": 5, "align": 1}, {"window_right": 17}]
    dims = [(64, 64), (128, 128), (256, 256), (8, 8), (72, 40), (96, 96), (192, 128), (64, 160)]
    n = 0
    for (d, dv), dtype in itertools.product(dims, NORM):
        for shape, f in itertools.product(shapes, masks):
            b, h, hk, sq, sk = shape
            kind = ("normal", "outliers", "constant", "large", "negative")[n % 5]
            case = {"q": inputs(kind, (b, sq, h, d), dtype), "k": inputs(kind, (b, sk, hk, d), dtype),
                    "v": inputs("normal", (b, sk, hk, dv), dtype)}
            if kind == "negative":  # every score
                case["q"], case["k"] = case["q"].abs(), -case["k"].abs()
            run_case(lib, f"{kind} {dtype} d {d},{dv} {shape} {f}", case, f)
            n += 1
    return n


def modified_grid(lib):
    """Scores that something is done to."""
    n = 0
    for d, dtype in itertools.product((64, 128, 256), NORM):
        for f in ({}, {"causal": 1}, {"window_left": 50, "window_right": 20}):
            b, h, hk, sq, sk = 2, 6, 3, 200, 333
            base = {"q": inputs("normal", (b, sq, h, d), dtype),
                    "k": inputs("normal", (b, sk, hk, d), dtype),
                    "v": inputs("normal", (b, sk, hk, d), dtype)}
            slopes = torch.rand(h, device="cuda") / 10
            bias = torch.randn(1, h, sq, sk, device="cuda")
            hidden = bias.masked_fill(torch.rand_like(bias) < 0.2, -math.inf)
            sink = torch.randn(h, device="cuda")
            for extra, g in (({}, {"softcap": 20.0}), ({"alibi_slopes": slopes}, {}),
                             ({"bias": bias}, {}), ({"bias": hidden.to(dtype)}, {}),
                             ({"bias": bias[:, :1, :1].contiguous()}, {}), ({"sink": sink}, {}),
                             ({}, {"has_scale": 1, "scale": -0.1}),
                             ({"sink": sink, "alibi_slopes": slopes}, {"softcap": 5.0})):
                run_case(lib, f"{dtype} d {d} {list(extra)} {f} {g}", {**base, **extra},
                         {**f, **g})
                n += 1
    return n


def few_queries_grid(lib):
    """Query heads of one kv head that share a tile's rows."""
    n = 0
    heads = [(8, 2), (12, 4), (8, 1), (35, 5), (6, 2), (64, 1)]
    for (h, hk), sq, dtype in itertools.product(heads, (1, 5, 17, 64), NORM):
        f = ({}, {"causal": 1}, {"window_left": 100, "window_right": 3})[n % 3]
        sk, d = (200, 257, 64)[n % 3], (64, 128, 256)[n // 3 % 3]
        case = {"q": inputs("normal", (2, sq, h, d), dtype),
                "k": inputs("normal", (2, sk, hk, d), dtype),
                "v": inputs("normal", (2, sk, hk, d), dtype)}
        if n % 2:
            case["sink"] = torch.randn(h, device="cuda")
        if n % 5 == 1:
            case["alibi_slopes"] = torch.rand(h, device="cuda") / 10
        if n % 5 == 2:
            case["bias"] = torch.randn(1, h, sq, sk, device="cuda")
        run_case(lib, f"{dtype} heads {h}/{hk} sq {sq} sk {sk} d {d} {f} {list(case)[3:]}", case, f)
        n += 1
    return n


def packed_grid(lib):
    """cu_seqlens and seqused; everything that is not a sequence's own holds NaN."""
    n = 0
    for d, dtype, f in itertools.product((64, 128), NORM, ({}, {"causal": 1},
                                                          {"window_left": 70, "window_right": 9})):
        packed = Packed([0, 130, 1, 0, 257, 64, 0], [5, 200, 0, 0, 257, 31, 3], (4, 2), (d, dtype))
        q = packed.case["q"]
        o, o_buffer = poisoned(q.shape, dtype)
        lse, _ = poisoned((q.shape[1], q.shape[0]), torch.float32)
        lib.forward(lib.plan(packed.case, **packed.sizes, **f), packed.case, o, lse)()
        torch.cuda.synchronize()
        if not guards_hold(o_buffer):
            failures.append(f"packed {dtype} d {d} {f}: wrote outside O")
        for i, (a, _) in enumerate(packed.lengths):
            if a == 0:
                continue
            rows, one = packed.rows(i)[0], packed.one(i)
            qkv = [one[x] for x in "qkv"]
            verdict(f"packed {dtype} d {d} {f} sequence {i}", o[None, rows], lse[None, :, rows],
                    attention(*qkv, {}, f, torch.float64), attention(*qkv, {}, f, dtype),
                    largest_terms(*qkv[:2], {}, f))
            n += 1
    return n


MASKS = ({}, {"causal": 1}, {"window_left": 50, "window_right": 20})


def aligned_grid(lib):
    """Biases whose rows begin anywhere: odd lengths, odd strides, odd addresses."""
    n = 0
    for (d, dtype), sk, f in itertools.product(((64, torch.float16), (128, torch.bfloat16)),
                                               (333, 256, 8, 1), MASKS):
        b, h, hk, sq = 2, 4, 2, 77
        case = {"q": inputs("normal", (b, sq, h, d), dtype),
                "k": inputs("normal", (b, sk, hk, d), dtype),
                "v": inputs("normal", (b, sk, hk, d), dtype)}
        wide = torch.randn(b, h, sq, sk + 3, device="cuda")
        for bias_dtype, first in itertools.product((torch.float32, dtype), (0, 1, 2)):
            bias = wide.to(bias_dtype)[..., first:first + sk]
            for view in (bias, bias.contiguous(), bias[:1, :, :, :], bias[:, :1, :1]):
                run_case(lib, f"{dtype} d {d} sk {sk} {f} bias {bias_dtype} from {first} "
                         f"{tuple(view.shape)} {view.stride()}", {**case, "bias": view}, f)
                n += 1
    return n


def one_hot(v, first):
    """Values that say which key they are of, for the keys from `first` on: O is then P."""
    v = torch.zeros_like(v)
    for i in range(min(v.shape[3], v.shape[1] - first)):
        v[:, first + i, :, i] = 1
    return v


def dropout_case(lib, name, case, f, chance):
    """The mask on the GPU, on the CPU, and by its definition; then O by the rule."""
    sk, dv = case["v"].shape[1], case["v"].shape[3]
    seed, offset = (int(x) for x in torch.randint(2**62, (2,)))
    b, sq, h = case["q"].shape[:3]
    f = {**f, "dropout_p": chance}
    keep = dropout_mask((b, h, sq, sk), chance, seed, offset)
    for first in range(0, sk, dv):
        tensors = {**case, "v": one_hot(case["v"], first)}
        found = []
        for t in (tensors, {n: x.cpu() for n, x in tensors.items()}):
            o = torch.full(t["q"].shape[:3] + (dv,), math.nan, dtype=t["q"].dtype,
                           device=t["q"].device)
            lse = torch.empty(b, h, sq, device=o.device)
            lib.forward(lib.plan(t, **f), t, o, lse, (seed, offset))()
            found.append((o.cuda(), lse.cuda()))
        (o, lse), (cpu_o, _) = found
        judged = {**f, "keep": keep}
        qkv = [tensors[n] for n in "qkv"]
        ref = attention(*qkv, tensors, judged, torch.float64)
        for what, other in (("the CPU's", cpu_o), ("its definition's", ref[0])):
            if wrong := ((o == 0) != (other == 0)).sum().item():
                failures.append(f"{name}, keys from {first}: {wrong} zeros are not {what}")
        verdict(f"{name}, keys from {first}", o, lse, ref,
                attention(*qkv, tensors, judged, o.dtype),
                largest_terms(*qkv[:2], tensors, f))


def dropout_grid(lib):
    """Exactly the CPU's mask. Scores are small, so that no kept probability rounds to 0."""
    n = 0
    shapes = [(2, 6, 3, 150, 333), (1, 8, 1, 5, 200), (1, 4, 4, 64, 64), (3, 2, 1, 1, 31)]
    for d, dtype, shape in itertools.product((64, 128, 256), NORM, shapes):
        (b, h, hk, sq, sk), f = shape, MASKS[n % 3]
        case = {"q": inputs("normal", (b, sq, h, d), dtype) / 4,
                "k": inputs("normal", (b, sk, hk, d), dtype),
                "v": inputs("normal", (b, sk, hk, d), dtype)}
        dropout_case(lib, f"dropout {dtype} d {d} {shape} {f}", case, f, (0.1, 0.5, 0.9)[n % 3])
        n += 1
    return n


def crowded_grid(lib):
    """Many more work items than multiprocessors, long runs of which see no key or hold no row."""
    n = 0
    for (d, dtype), f in itertools.product(((64, torch.float16), (128, torch.bfloat16)), MASKS):
        lengths = [int(x) for x in torch.exp(5 + 1.3 * torch.randn(40)).clamp(0, 3000)]
        others = lengths[::-1] if n % 2 else lengths
        packed = Packed(lengths, others, (8, 2), (d, dtype))
        o = torch.full_like(packed.case["q"], math.nan)
        lse = torch.full((8, o.shape[0]), math.nan, device="cuda")
        lib.forward(lib.plan(packed.case, **packed.sizes, **f), packed.case, o, lse)()
        for i in range(len(lengths)):
            rows, one = packed.rows(i)[0], packed.one(i)
            qkv = [one[x] for x in "qkv"]
            if lengths[i]:
                verdict(f"crowded {dtype} d {d} {f} sequence {i} of {lengths}", o[None, rows],
                        lse[None, :, rows], attention(*qkv, {}, f, torch.float64),
                        attention(*qkv, {}, f, dtype), largest_terms(*qkv[:2], {}, f))
        n += 1
        for sq, sk in ((9000, 70), (5000, 0), (70, 9000)):
            case = {x: inputs("normal", (1, sq if x == "q" else sk, 6, d), dtype) for x in "qkv"}
            case["sink"] = torch.randn(6, device="cuda")
            run_case(lib, f"crowded {dtype} d {d} {sq} {sk} {f}", case, f)
            n += 1
    return n


def large_grid(lib, s=16384, rows=2**20 + 77):
    """Long sequences, and tensors of more than 2^32 numbers, of which the last rows are judged."""
    for d, f in itertools.product((64, 128, 256), ({}, {"causal": 1}, {"window_left": 3000})):
        case = {n: inputs("normal", (1, s, 2 if n == "q" else 1, d), torch.bfloat16) for n in "qkv"}
        run_case(lib, f"long {s} d {d} {f}", case, f)
    for d, h in ((128, 16), (64, 32)):
        f = {"window_left": 100, "window_right": 9}
        case = {n: inputs("normal", (2, rows, h, d), torch.bfloat16) for n in "qkv"}
        o = torch.full_like(case["q"], math.nan)
        lse = torch.full((2, h, rows), math.nan, device="cuda")
        lib.forward(lib.plan(case, **f), case, o, lse)()
        for at in (0, 1):  # of the first sequence the last rows, and of the last
            qkv = [case[n][at:at + 1, -(300 if n == "q" else 500):] for n in "qkv"]
            verdict(f"{o.numel()} numbers, d {d}, sequence {at}", o[at:at + 1, -300:],
                    lse[at:at + 1, :, -300:], attention(*qkv, {}, f, torch.float64),
                    attention(*qkv, {}, f, o.dtype), largest_terms(*qkv[:2], {}, f))
        if torch.isnan(o.view(-1, d)[:, 0]).any() or torch.isnan(lse).any():
            failures.append(f"{o.numel()} numbers, d {d}: rows left out")
    return 13


def repeated_cases():
    """What must give the same bits: every kernel's plain path, then what takes others."""
    def qkv(d, h=8, hk=8, sq=700, sk=700):
        sizes = {"q": (2, sq, h, d), "k": (2, sk, hk, d), "v": (2, sk, hk, d)}
        return {n: inputs("normal", size, torch.bfloat16) for n, size in sizes.items()}
    for d, causal in itertools.product((64, 128, 256), (0, 1)):
        yield f"d {d} causal {causal}", qkv(d), {"causal": causal}
    yield "window", qkv(128), {"causal": 1, "window_left": 200}
    yield "dropout", qkv(128), {"dropout_p": 0.2, "softcap": 10.0}
    yield "bias", {**qkv(64), "bias": torch.randn(1, 8, 700, 700, device="cuda")}, {}
    yield "few queries", qkv(128, 32, 4, 5, 3000), {"causal": 1}
    packed = Packed([300, 0, 1, 500], [400, 9, 0, 600], (8, 2), (128, torch.bfloat16))
    yield "packed", packed.case, {**packed.sizes, "causal": 1}


def repeats(lib, count=500):
    """The same bits, with other work beside it, on another stream, and from a graph."""
    noise = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    n = 0
    for name, case, f in repeated_cases():
        o = torch.empty_like(case["q"])
        lse = torch.empty(o.shape[:-3] + (o.shape[-2], o.shape[-3]), device="cuda")
        run = lib.forward(lib.plan(case, **f), case, o, lse, seed=5)
        run()
        torch.cuda.synchronize()
        first, first_lse = o.clone(), lse.clone()
        different = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(count):
            with torch.cuda.stream(side):
                noise @ noise
            o.fill_(math.nan)
            run()
            different += (o != first).sum() + (lse != first_lse).sum()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        o.fill_(math.nan)
        graph.replay()
        different += (o != first).sum()
        if different.item():
            failures.append(f"repeats {name}: {different.item()} numbers differ")
        n += 1
    return n


def refusals(lib):
    """Bad input comes back as a message that names the argument."""
    case = {n: inputs("normal", (1, 64, 2, 64), torch.bfloat16) for n in "qkv"}
    o = torch.empty_like(case["q"])
    plan = lib.plan(case)
    bad = {**case, "k": torch.empty(1, 64, 2, 64, dtype=torch.bfloat16).pin_memory()}
    view = lib.forward(plan, bad, o)
    view.keep[0]["k"].device_kind, view.keep[0]["k"].device_index = tw.CUDA, 0
    for what, call, words in (
            ("host pointer", view, "host memory"),
            ("f32", lambda: lib.plan({n: t.float() for n, t in case.items()}), "f16 or bf16")):
        try:
            call()
            failures.append(f"{what} was accepted")
        except RuntimeError as error:
            if words not in str(error):
                failures.append(f"{what}: message is {error}")


PARTS = (refusals, dense_grid, modified_grid, few_queries_grid, aligned_grid, dropout_grid,
         packed_grid, crowded_grid, large_grid, repeats)

if __name__ == "__main__":
    sys.exit(run_parts(tw.Library, PARTS))
