#!/usr/bin/env python3
"""The GPU's accuracy grid, on a Hopper card: gpu_test.py path/to/libtilewise.so

Every kernel against float64 on the same (rounded) inputs, by the accuracy rule of
docs/semantics.md: NaN-poisoned outputs with guard bands, fresh random inputs, the seed printed.
Then repeats that must be equal bit by bit, other streams, graph replay, and bad input."""
import itertools
import math
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import tilewise_torch as tw  # noqa: E402

GUARD = 4096
NORM = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
failures = []


def poisoned(shape, dtype):
    """(tensor, its guarded buffer): NaN inside and around."""
    n = math.prod(shape)
    buffer = torch.full((n + 2 * GUARD,), math.nan, dtype=dtype, device="cuda")
    return buffer[GUARD:GUARD + n].view(shape), buffer


def guards_hold(buffer):
    return bool(torch.isnan(buffer[:GUARD]).all() and torch.isnan(buffer[-GUARD:]).all())


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
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def score_bound(q, k, f):
    """No score is larger: what float32 rounds a score, and so LSE, relative to."""
    if q.numel() == 0 or k.numel() == 0:
        return 0.0
    scale = abs(f.get("scale", q.shape[-1] ** -0.5))
    return scale * (q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max()).item()


def verdict(name, o, lse, ref, low, bound_of_scores):
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
        off = ((lse.double() - ref_lse).abs() - 1e-6 * ref_lse.abs())[finite].max().item()
        if off > 2e-5 + 1e-6 * bound_of_scores:
            problems.append(f"LSE off by {off:.3g} beside scores up to {bound_of_scores:.3g}")
    if problems:
        failures.append(f"{name}: {'; '.join(problems)}")
    return norm


def inputs(kind, shape, dtype):
    x = torch.randn(shape, device="cuda")
    if kind == "outliers":
        x += 10 * torch.randn_like(x) * (torch.rand_like(x) < 1e-3)
    elif kind == "constant":
        x = x[..., :1].expand(shape).contiguous()
    elif kind == "large":
        x *= 30
    return x.to(dtype)


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
                   score_bound(q, k, f))


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
            kind = ("normal", "outliers", "constant", "large")[n % 4]
            case = {"q": inputs(kind, (b, sq, h, d), dtype), "k": inputs(kind, (b, sk, hk, d), dtype),
                    "v": inputs("normal", (b, sk, hk, dv), dtype)}
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


def packed_grid(lib):
    """cu_seqlens and seqused; everything that is not a sequence's own holds NaN."""
    n = 0
    for d, dtype, f in itertools.product((64, 128), NORM, ({}, {"causal": 1},
                                                          {"window_left": 70, "window_right": 9})):
        lengths_q, lengths_k = [0, 130, 1, 0, 257, 64, 0], [5, 200, 0, 0, 257, 31, 3]
        slack = 40
        cu_q = torch.tensor([0, *itertools.accumulate(lengths_q)], dtype=torch.int32)
        slots = [x + slack for x in lengths_k]
        cu_k = torch.tensor([0, *itertools.accumulate(slots)], dtype=torch.int32)
        h, hk = 4, 2
        q = inputs("normal", (int(cu_q[-1]), h, d), dtype)
        k = torch.full((int(cu_k[-1]), hk, d), math.nan, device="cuda", dtype=dtype)
        v = k.clone()
        for i, used in enumerate(lengths_k):
            at = int(cu_k[i])
            k[at:at + used] = inputs("normal", (used, hk, d), dtype)
            v[at:at + used] = inputs("normal", (used, hk, d), dtype)
        case = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q.cuda(), "cu_seqlens_kv": cu_k.cuda(),
                "seqused_kv": torch.tensor(lengths_k, dtype=torch.int32, device="cuda")}
        o, o_buffer = poisoned((q.shape[0], h, d), dtype)
        lse, _ = poisoned((h, q.shape[0]), torch.float32)
        plan = lib.plan(case, batch=len(lengths_q), seq_q=max(lengths_q), seq_kv=max(slots), **f)
        lib.forward(plan, case, o, lse)()
        torch.cuda.synchronize()
        if not guards_hold(o_buffer):
            failures.append(f"packed {dtype} d {d} {f}: wrote outside O")
        for i, (a, used) in enumerate(zip(lengths_q, lengths_k)):
            if a == 0:
                continue
            at, kv = int(cu_q[i]), int(cu_k[i])
            one = [q[None, at:at + a], k[None, kv:kv + used], v[None, kv:kv + used]]
            verdict(f"packed {dtype} d {d} {f} sequence {i}", o[None, at:at + a],
                    lse[None, :, at:at + a], attention(*one, {}, f, torch.float64),
                    attention(*one, {}, f, dtype), score_bound(*one[:2], f))
            n += 1
    return n


def repeats(lib, count=500):
    """The same bits, with other work beside it, on another stream, and from a graph."""
    noise = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    for d, causal in itertools.product((64, 128, 256), (0, 1)):
        case = {n: inputs("normal", (2, 700, 8, d), torch.bfloat16) for n in "qkv"}
        o, lse = torch.empty_like(case["q"]), torch.empty(2, 8, 700, device="cuda")
        run = lib.forward(lib.plan(case, causal=causal), case, o, lse)
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
            failures.append(f"repeats d {d} causal {causal}: {different.item()} numbers differ")


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


def main():
    lib = tw.Library(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**31
    torch.manual_seed(seed)
    print(f"{torch.cuda.get_device_name()}, seed {seed}", flush=True)
    for part in (refusals, dense_grid, modified_grid, packed_grid, repeats):
        start, before = time.time(), len(failures)
        count = part(lib)
        print(f"{part.__name__}: {count or ''} {len(failures) - before} failures, "
              f"{time.time() - start:.1f} s", flush=True)
    print("\n".join(failures[:40]) or "all within the rule")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
