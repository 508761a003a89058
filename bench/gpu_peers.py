#!/usr/bin/env python3
"""Forward attention on a GPU: tilewise, through its C API, against PyTorch's cuDNN and
FlashAttention-2, interleaved in one process. Prints tables; --json appends the project's benchmark
records. gpu_peers.py path/to/libtilewise.so [--json FILE] [--parts square,grouped,...]"""
import argparse
import itertools
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_bench as gpu
import gpu_costs
from gpu_bench import tw

ATEN = torch.ops.aten


def sdpa(backend, q, k, v, causal):
    views = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*views, is_causal=causal,
                                                  enable_gqa=q.shape[2] != k.shape[2])
    return run


def dense_cell(lib, results, d, s, heads, mask):
    """{implementation: TFLOP/s} for one problem of gpu.TOKENS tokens."""
    batch, (hq, hk) = gpu.TOKENS // s, heads
    q, k, v = (gpu.random(batch, s, h, d) for h in (hq, hk, hk))
    tensors = {"q": q, "k": k, "v": v}
    lse = torch.empty(batch, hq, s, device="cuda")
    plan = lib.plan(tensors, **gpu.mask_fields(mask))
    runs = {"tilewise": gpu.graphed(lib.forward(plan, tensors, torch.empty_like(q), lse))}
    if mask in ("full", "causal"):
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                              ("fa2", SDPBackend.FLASH_ATTENTION)):
            runs[name] = gpu.graphed(sdpa(backend, q, k, v, mask == "causal"))
    flops = 4 * batch * hq * d * gpu.visible(s, mask)
    cell = {"d": d, "sq": s, "batch": batch, "heads": heads, "mask": mask}
    return {name: results.add(cell, name, ms, flops)
            for name, ms in gpu.interleaved(runs, flops).items()}


def dense(lib, results, d, heads, masks, lengths=gpu.LENGTHS):
    for mask in masks:
        gpu.table(f"d {d}, heads {heads[0]}/{heads[1]}, {mask}", lengths,
                  lambda s, mask=mask: dense_cell(lib, results, d, s, heads, mask))


def square(lib, results):
    for d in (64, 128, 256):
        h = gpu.WIDTH // d
        dense(lib, results, d, (h, h), ("full", "causal"))


def grouped(lib, results):
    for heads in ((32, 8), (64, 8)):
        dense(lib, results, 128, heads, ("full", "causal"))


def window(lib, results):
    for d in (64, 128):
        h = gpu.WIDTH // d
        dense(lib, results, d, (h, h), ["window 1024"], gpu.LENGTHS[2:])


def long_tailed(tokens, spread):
    """Lengths that add up to `tokens`, log-normal around e^6 = 403, the same in every run."""
    generator = torch.Generator().manual_seed(20)
    lengths = []
    while sum(lengths) < tokens:
        x = torch.randn((), generator=generator).item()
        length = int(min(max(2.718281828 ** (6 + spread * x), 16), 8192))
        lengths.append(min(length, tokens - sum(lengths)))
    return lengths


def packed_peers(q, k, v, cu, longest, causal):
    """FlashAttention-2. cuDNN's takes packed sequences too, but PyTorch prepares them on the host in
    every call: it can't be captured, and what one would time is that."""
    def run():
        return ATEN._flash_attention_forward(q, k, v, cu, cu, longest, longest, 0.0, causal, False,
                                             scale=q.shape[-1] ** -0.5)
    return {"fa2": gpu.graphed(run)}


def packed_cell(lib, results, d, spread, mask):
    lengths = long_tailed(2 * gpu.TOKENS, spread)
    h, longest, total = gpu.WIDTH // d, max(lengths), sum(lengths)
    q, k, v = (gpu.random(total, h, d) for _ in "qkv")
    cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_kv": cu}
    plan = lib.plan(tensors, batch=len(lengths), seq_q=longest, seq_kv=longest,
                    **gpu.mask_fields(mask))
    run = lib.forward(plan, tensors, torch.empty_like(q), torch.empty(h, total, device="cuda"))
    runs = {"tilewise": gpu.graphed(run), **packed_peers(q, k, v, cu, longest, mask == "causal")}
    flops = 4 * h * d * sum(gpu.visible(s, mask) for s in lengths)
    cell = {"d": d, "sq": longest, "batch": len(lengths), "heads": (h, h), "mask": mask,
            "scores": f"packed, log-normal {spread}"}
    return {name: results.add(cell, name, ms, flops)
            for name, ms in gpu.interleaved(runs, flops).items()}


def packed(lib, results):
    """Columns: how long the tail is, the spread of the lengths' logarithm."""
    for d, mask in itertools.product((64, 128), ("full", "causal")):
        gpu.table(f"d {d}, packed, {mask}; spread", (0.5, 1.0, 1.5),
                  lambda spread: packed_cell(lib, results, d, spread, mask))


def host_cost(lib):
    """Microseconds of host time that one warm launch takes."""
    tensors = {n: gpu.random(1, 64, 1, 64) for n in "qkv"}
    run = lib.forward(lib.plan(tensors), tensors, torch.empty_like(tensors["q"]))
    for _ in range(100):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(200):
        run()
    spent = (time.perf_counter() - begin) / 200
    torch.cuda.synchronize()
    return spent * 1e6


PARTS = {"square": square, "grouped": grouped, "window": window, "packed": packed,
         "costs": gpu_costs.costs}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--json", help="append one JSON object a line")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    args = parser.parse_args()
    lib = tw.Library(args.library)
    results = gpu.Results("fwd", args.json)
    print(f"host time of a warm call {host_cost(lib):.1f} us (Python's ctypes included)")
    for part in args.parts.split(","):
        PARTS[part](lib, results)
    results.save()


if __name__ == "__main__":
    main()
