#!/usr/bin/env python3
"""Attention on a CPU: tilewise, through its C API, against PyTorch's fused and naive attention, in
turns in one process; and against what this machine's units do in registers (bench/cpu_peaks.c, if
there is a C compiler), its matrix product and its read bandwidth.
cpu_peers.py path/to/libtilewise.so [--threads N] [--json FILE] [--quick] [--cpu-time]
TILEWISE_CPU_ISA caps the instruction set."""
import argparse
import concurrent.futures
import ctypes as c
import datetime
import json
import math
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tilewise_torch as tw  # noqa: E402

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
DIMS, LENGTHS = (32, 64, 128, 256), (128, 512, 2048, 8192)
QUICK_DIMS, QUICK_LENGTHS = (64, 128), (512, 2048)
ROUNDS = 5


class Cpu(tw.Library):
    """The C API on CPU tensors; the workspace is this class' own."""

    def info(self, plan, backward=False):
        """What the plan says of one pass."""
        out = tw.PassC(c.sizeof(tw.PassC))
        self.check(self.c.tw_plan_pass(plan, int(backward), c.byref(out)))
        return out

    def call(self, plan, tensors, results, backward=False):
        """A function that runs one pass."""
        views = {n: tw.tensor(t) for n, t in {**tensors, **results}.items()}
        def struct(kind, names, *rest):
            return kind(c.sizeof(kind), *[c.addressof(views[n]) if n in views else None
                                          for n in names], *rest)
        inputs = struct(tw.InputsC, tw.TENSORS, 0, 0)
        out = (struct(tw.GradientsC, tw.GRADIENTS) if backward
               else struct(tw.OutputsC, ("o", "lse")))
        size = self.info(plan, backward).workspace_bytes
        room = torch.empty(size + 64, dtype=torch.uint8)
        launch = tw.LaunchC(c.sizeof(tw.LaunchC), -(-room.data_ptr() // 64) * 64, size, None)
        run = self.c.tw_backward if backward else self.c.tw_forward

        def once():
            self.check(run(plan, c.byref(inputs), c.byref(out), c.byref(launch)))
        once.keep = (views, tensors, results, room)
        return once


def torch_forward(q, k, v, causal, backend):
    """PyTorch's attention on the same tensors, in the layout it likes best."""
    views = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def once():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*views, is_causal=causal,
                                                  enable_gqa=q.shape[2] != k.shape[2])
    return once


def torch_backward(q, k, v, d_o, causal):
    views = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    grad = d_o.transpose(1, 2).contiguous()
    o = F.scaled_dot_product_attention(*views, is_causal=causal)
    return lambda: torch.autograd.grad(o, views, grad, retain_graph=True)


def model_name():
    """As the operating system names the processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(": ", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.processor()


def unit_peaks(threads):
    """TFLOP/s of FMAs, bf16 dot products and AMX tiles, that many threads at a time; 0: not here."""
    source = pathlib.Path(__file__).resolve().parent / "cpu_peaks.c"
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "peaks.so"
        try:
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        except (OSError, subprocess.CalledProcessError):
            return {"fma": 0, "dot": 0, "amx": 0}
        peaks = c.CDLL(str(library))
    out = {}
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for name in ("fma", "dot", "amx"):
            run = peaks["peak_" + name]
            run.restype = c.c_double
            out[name] = sum(pool.map(lambda _, run=run: run(), range(threads))) / 1e12
    return out


class Bench:
    """Measures cells and keeps their records."""

    def __init__(self, args):
        self.lib, self.clock = Cpu(args.library), (time.process_time if args.cpu_time
                                                   else time.perf_counter)
        self.threads, self.heads, self.device = args.threads, args.heads, model_name()
        self.json = open(args.json, "a", encoding="utf-8") if args.json else None
        self.ceilings = {t: self.product(t) for t in NAMES if NAMES[t] in args.dtypes}
        self.peaks = unit_peaks(args.threads)
        self.bandwidth = self.read_bandwidth()

    def seconds(self, run, count):
        begin = self.clock()
        for _ in range(count):
            run()
        return (self.clock() - begin) / count

    def in_turns(self, runs):
        """Median seconds of each."""
        times = {name: [] for name in runs}
        counts = {n: max(1, int(0.02 / max(1e-7, self.seconds(r, 1)))) for n, r in runs.items()}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                times[name].append(self.seconds(run, counts[name]))
        return {name: statistics.median(t) for name, t in times.items()}

    def product(self, dtype):
        """TFLOP/s of PyTorch's matrix product."""
        n = 256 if dtype == torch.float16 else 1024  # not every processor has a fast f16 product
        a, b = (torch.randn(n, n).to(dtype) for _ in range(2))
        run = lambda: a @ b  # noqa: E731
        run()
        return 2 * n**3 / min(self.seconds(run, 3) for _ in range(5)) / 1e12

    def read_bandwidth(self):
        """Bytes a second of summing 512 MiB."""
        x = torch.ones(1 << 27)
        return 4 * x.numel() / min(self.seconds(x.sum, 1) for _ in range(5))

    def record(self, cell, flops, times, plan):
        """Appends a line for each implementation; `plan` is what ours says of the pass."""
        if not self.json:
            return
        for impl, seconds in times.items():
            ours = impl == "tilewise"
            self.json.write(json.dumps({
                **cell, "device": self.device, "threads": self.threads,
                "impl": impl if ours else "torch", "kernel": plan.kernel.decode() if ours else impl,
                "isa": plan.isa.decode() if ours else None, "ms_median": seconds * 1e3,
                "tflops": flops / seconds / 1e12, "torch": torch.__version__,
                "peak_tflops": self.peaks, "read_gbs": self.bandwidth / 1e9,
                "date": datetime.date.today().isoformat()}) + "\n")
        self.json.flush()

    def train(self, dtype, d, s, causal, naive):
        """Forward and backward of one problem; returns the ratios to PyTorch's fused attention."""
        q, k, v, d_o = (torch.randn(1, s, self.heads, d).to(dtype) for _ in range(4))
        o, grads = torch.empty_like(q), {n: torch.empty_like(q) for n in ("dq", "dk", "dv")}
        lse = torch.empty(1, self.heads, s)
        tensors = {"q": q, "k": k, "v": v}
        plan = self.lib.plan(tensors, causal=int(causal))
        cell = {"dtype": NAMES[dtype], "d": d, "dv": d, "sq": s, "sk": s, "batch": 1, "hq": self.heads,
                "hkv": self.heads, "mask": "causal" if causal else "full",
                "ceiling_tflops": self.ceilings[dtype]}
        flops = 4 * self.heads * s * s * d / (2 if causal else 1)
        forward = {"tilewise": self.lib.call(plan, tensors, {"o": o, "lse": lse}),
                   "fused": torch_forward(q, k, v, causal, SDPBackend.FLASH_ATTENTION)}
        if naive:
            forward["naive"] = torch_forward(q, k, v, causal, SDPBackend.MATH)
        backward = {"tilewise": self.lib.call(plan, tensors,
                                              {"o": o, "lse": lse, "d_o": d_o, **grads}, True),
                    "fused": torch_backward(q, k, v, d_o, causal)}
        ratios = []
        for name, runs, work in (("fwd", forward, flops), ("bwd", backward, 2.5 * flops)):
            times = self.in_turns(runs)
            self.record({"pass": name, **cell}, work, times, self.lib.info(plan, name == "bwd"))
            ratios.append(times["fused"] / times["tilewise"])
            print(f"{name} {NAMES[dtype]:4} d {d:3} S {s:5} {cell['mask']:6}"
                  + "".join(f"  {n} {work / t / 1e9:6.0f}" for n, t in times.items())
                  + f"  ratio {ratios[-1]:5.2f}", flush=True)
        return ratios

    def decode(self, dtype, heads, sk, d=128):
        """One query a head against many keys: the fraction of the read bandwidth."""
        q = torch.randn(1, 1, heads[0], d).to(dtype)
        k, v = (torch.randn(1, sk, heads[1], d).to(dtype) for _ in range(2))
        tensors = {"q": q, "k": k, "v": v}
        plan = self.lib.plan(tensors)
        times = self.in_turns({
            "tilewise": self.lib.call(plan, tensors, {"o": torch.empty_like(q)}),
            "fused": torch_forward(q, k, v, False, SDPBackend.FLASH_ATTENTION)})
        self.record({"pass": "decode", "dtype": NAMES[dtype], "d": d, "dv": d, "sq": 1, "sk": sk,
                     "batch": 1, "hq": heads[0], "hkv": heads[1], "mask": "full",
                     "ceiling_tflops": None}, 4 * heads[0] * sk * d, times,
                    self.lib.info(plan))
        rate = 2 * k.numel() * k.element_size() / times["tilewise"]
        print(f"decode {NAMES[dtype]:4} heads {heads[0]}/{heads[1]} S {sk}: {rate / 1e9:.1f} GB/s, "
              f"{rate / self.bandwidth:.2f} of reading; fused {times['fused'] / times['tilewise']:.1f}"
              " times as long", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="append one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a third of the grid")
    parser.add_argument("--dtypes", nargs="+", choices=NAMES.values(), default=NAMES.values())
    parser.add_argument("--dims", nargs="+", type=int, help="head dims")
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument("--cpu-time", action="store_true",
                        help="count processor time: for one thread on a machine that others use")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)  # OpenMP's own count too, which tilewise goes by
    bench = Bench(args)
    print("in registers, GFLOP/s: " + ", ".join(f"{n} {x * 1e3:.0f}"
                                                for n, x in bench.peaks.items()))
    print("matrix product, GFLOP/s: " + ", ".join(
        f"{NAMES[t]} {x * 1e3:.0f}" for t, x in bench.ceilings.items())
        + f"; reading {bench.bandwidth / 1e9:.1f} GB/s")
    means = {}
    chosen = [t for t in NAMES if NAMES[t] in args.dtypes]
    for dtype in chosen:
        for d in args.dims or (QUICK_DIMS if args.quick else DIMS):
            for s in args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS):
                for causal in (False, True):
                    forward, backward = bench.train(dtype, d, s, causal, naive=s <= 2048)
                    if s >= 512:
                        means.setdefault((dtype, "forward"), []).append(forward)
                        means.setdefault((dtype, "backward"), []).append(backward)
    for dtype in [] if args.no_decode else chosen:
        for heads in ((8, 8), (32, 8)):
            bench.decode(dtype, heads, 16384)
    for (dtype, name), ratios in means.items():
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{NAMES[dtype]} {name}: {mean:.2f} times PyTorch's fused, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
