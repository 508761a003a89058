#!/usr/bin/env python3
"""Forward attention on a GPU: tilewise, through its C API, against PyTorch's cuDNN and
FlashAttention-2, interleaved in one process. Prints tables; --json appends the project's benchmark
records. gpu_peers.py path/to/libtilewise.so [--json FILE] [--quick]"""
import argparse
import datetime
import json
import math
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tilewise_torch as tw  # noqa: E402

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, WIDTH = 16384, 2048
ROUNDS = 9


def milliseconds(run, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def graphed(run):
    """Replays `run` from a graph, so that no peer pays for its host code."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.keep = run
    return graph.replay


def interleaved(runs, flops):
    """Median milliseconds of each, measured in turns."""
    times = {name: [] for name in runs}
    count = max(1, min(20, int(2e-3 * 500e12 / flops)))
    for run in runs.values():
        milliseconds(run, 2)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(milliseconds(run, count))
    return {name: statistics.median(t) for name, t in times.items()}


def ceiling():
    """TFLOP/s of a large bf16 matrix product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = statistics.median(milliseconds(lambda: a @ b, 5) for _ in range(5))
    return 2 * 8192**3 / ms / 1e9


def sdpa(backend, q, k, v, causal):
    views = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*views, is_causal=causal,
                                                  enable_gqa=q.shape[2] != k.shape[2])
    return run


def visible(s, mask):
    """Scores of one head that count."""
    if mask == "causal":
        return s * s / 2
    if mask.startswith("window"):
        w = int(mask.split()[1])
        return sum(min(i, w) + 1 for i in range(s))
    return s * s


class Bench:
    """Measures cells and keeps their records."""

    def __init__(self, lib):
        self.lib, self.ceiling, self.records = lib, ceiling(), []
        self.device = torch.cuda.get_device_name()

    def cell(self, d, s, heads, mask):
        """{implementation: TFLOP/s} for one problem of TOKENS tokens."""
        batch, (hq, hk) = TOKENS // s, heads
        q = torch.randn(batch, s, hq, d, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, s, hk, d, device="cuda", dtype=torch.bfloat16)
                for _ in range(2))
        fields = {"causal": int(mask != "full")}
        if mask.startswith("window"):
            fields["window_left"] = int(mask.split()[1])
        tensors = {"q": q, "k": k, "v": v}
        o = torch.empty_like(q)
        lse = torch.empty(batch, hq, s, device="cuda")
        plan = self.lib.plan(tensors, **fields)
        runs = {"tilewise": graphed(self.lib.forward(plan, tensors, o, lse))}
        if mask in ("full", "causal"):
            runs["cudnn"] = graphed(sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, mask == "causal"))
            runs["fa2"] = graphed(sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, mask == "causal"))
        flops = 4 * batch * hq * d * visible(s, mask)
        out = {}
        for name, ms in interleaved(runs, flops).items():
            out[name] = flops / ms / 1e9
            self.records.append({
                "pass": "fwd", "dtype": "bf16", "d": d, "dv": d, "sq": s, "sk": s, "batch": batch,
                "hq": hq, "hkv": hk, "mask": mask, "device": self.device, "threads": 1,
                "impl": name, "kernel": "fa3" if name == "tilewise" else name, "ms_median": ms,
                "tflops": out[name], "ceiling_tflops": self.ceiling, "peak_extra_bytes": 0,
                "date": datetime.date.today().isoformat()})
        return out

    def table(self, d, heads, mask, lengths):
        rows = {}
        for s in lengths:
            for name, tflops in self.cell(d, s, heads, mask).items():
                rows.setdefault(name, {})[s] = tflops
        print(f"d {d}, heads {heads[0]}/{heads[1]}, {mask}".ljust(34)
              + " ".join(f"{s:>6}" for s in lengths))
        for name, row in rows.items():
            print(f"  {name:32}" + " ".join(f"{row[s]:6.0f}" for s in lengths), flush=True)
        if "cudnn" not in rows:
            return
        ratios = [rows["tilewise"][s] / rows["cudnn"][s] for s in lengths]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"  {'tilewise / cudnn':32}" + " ".join(f"{r:6.3f}" for r in ratios)
              + f"   mean {mean:.3f}", flush=True)


def host_cost(lib):
    """Microseconds of host time that one warm launch takes."""
    tensors = {n: torch.randn(1, 64, 1, 64, device="cuda", dtype=torch.bfloat16) for n in "qkv"}
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--json", help="append one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="the main grid only")
    args = parser.parse_args()
    lib = tw.Library(args.library)
    bench = Bench(lib)
    print(f"{bench.device}; bf16 matrix product {bench.ceiling:.0f} TFLOP/s; host time of a warm "
          f"call {host_cost(lib):.1f} us (Python's ctypes included)")
    for d in (64, 128, 256):
        for mask in ("full", "causal"):
            bench.table(d, (WIDTH // d, WIDTH // d), mask, LENGTHS)
    if not args.quick:
        for heads in ((32, 8), (64, 8)):
            for mask in ("full", "causal"):
                bench.table(128, heads, mask, LENGTHS)
        bench.table(128, (16, 16), "window 1024", LENGTHS[2:])
    if args.json:
        with open(args.json, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in bench.records)


if __name__ == "__main__":
    main()
