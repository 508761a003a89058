"""What the GPU benchmarks share: timing in turns, ceilings, the project's records and the tables."""
import datetime
import json
import math
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tilewise_torch as tw  # noqa: E402, F401

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


def bandwidth():
    """TB/s of a copy, read and write."""
    a = torch.empty(2**31, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    ms = statistics.median(milliseconds(lambda: b.copy_(a), 5) for _ in range(5))
    return 2 * a.numel() / ms / 1e9


def random(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def mask_fields(mask):
    """The problem's fields for "full", "causal", or "window N": causal, and N keys before."""
    fields = {"causal": int(mask != "full")}
    if mask.startswith("window"):
        fields["window_left"] = int(mask.split()[1])
    return fields


def visible(s, mask):
    """Scores of one head that count."""
    if mask == "causal":
        return s * s / 2
    if mask.startswith("window"):
        w = int(mask.split()[1])
        return sum(min(i, w) + 1 for i in range(s))
    return s * s


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


class Results:
    """The records of one run; see README.md for their fields."""

    def __init__(self, which, path=None):
        self.which, self.path, self.records = which, path, []
        self.ceiling, self.device = ceiling(), torch.cuda.get_device_name()
        print(f"{self.device}; bf16 matrix product {self.ceiling:.0f} TFLOP/s")

    def add(self, cell, impl, ms, flops):
        """Keeps what `impl` took for `cell`, which names d, sq, batch, heads and mask; its TFLOP/s."""
        hq, hk = cell["heads"]
        left = cell["mask"].split()[-1]
        tflops = flops / ms / 1e9
        self.records.append({
            "pass": self.which, "dtype": "bf16", "d": cell["d"], "dv": cell["d"], "sq": cell["sq"],
            "sk": cell["sq"], "batch": cell["batch"], "hq": hq, "hkv": hk,
            "mask": f"causal window {left},-1" if "window" in cell["mask"] else cell["mask"],
            "device": self.device, "threads": 1, "impl": impl,
            "kernel": "fa3" if impl.startswith("tilewise") else impl, "ms_median": ms,
            "tflops": tflops, "ceiling_tflops": self.ceiling, "peak_extra_bytes": 0,
            "date": datetime.date.today().isoformat(),
            **({"scores": cell["scores"]} if "scores" in cell else {})})
        return tflops

    def save(self):
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(r) + "\n" for r in self.records)


def table(title, columns, cell):
    """Prints what `cell(column)` returns as {implementation: TFLOP/s}, and each of ours over cuDNN
    where that took part."""
    rows = {}
    for column in columns:
        for name, tflops in cell(column).items():
            rows.setdefault(name, []).append(tflops)
    print(title.ljust(34) + " ".join(f"{c:>6}" for c in columns))
    for name, row in rows.items():
        print(f"  {name[-32:]:32}" + " ".join(f"{x:6.0f}" for x in row), flush=True)
    for name, row in rows.items():
        if name.startswith("tilewise") and "cudnn" in rows:
            ratios = [x / y for x, y in zip(row, rows["cudnn"])]
            print(f"  {name[-24:] + ' / cudnn':32}" + " ".join(f"{r:6.3f}" for r in ratios)
                  + f"   mean {mean(ratios):.3f}", flush=True)
