"""What a semantic costs on a GPU, beside the plain kernel in the same run, and whether that is within
the bounds this project sets itself. A part of gpu_peers.py."""
import itertools

import torch

import gpu_bench as gpu

LENGTH, WINDOW = 4096, 1024
WINDOW_LENGTH = 16384
# Most that a problem may take, in times of the plain one; a bias may also take its bytes' time.
BOUNDS = {"softcap": 1.10, "ALiBi": 1.05, "dropout": 1.25, "bias": 1.0}
LEAST_WINDOW_RATE = 0.85  # of the full kernel's, per visited tile


def bounded(name, ratio, bound):
    """One line of the summary; bound and ratio in times of the plain kernel."""
    within = ratio >= bound if "rate" in name else ratio <= bound
    words = "at least" if "rate" in name else "at most"
    return f"  {name:44} {ratio:6.3f}  {words} {bound:.3f}  {'met' if within else 'NOT MET'}"


def variants(batch, heads):
    """{name: (tensors, fields)}: what is added to the plain problem."""
    slopes = 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    return {"plain": ({}, {}), "softcap": ({}, {"softcap": 30.0}),
            "ALiBi": ({"alibi_slopes": slopes}, {}),
            "bias": ({"bias": gpu.random(batch, heads, LENGTH, LENGTH)}, {}),
            "dropout": ({}, {"dropout_p": 0.1})}


def modified(lib, results, d, mask, terabytes_s):
    """Times of each variant in turns; the summary's lines."""
    batch, heads = gpu.TOKENS // LENGTH, gpu.WIDTH // d
    qkv = {n: gpu.random(batch, LENGTH, heads, d) for n in "qkv"}
    o, lse = torch.empty_like(qkv["q"]), torch.empty(batch, heads, LENGTH, device="cuda")
    runs = {}
    for name, (tensors, fields) in variants(batch, heads).items():
        case = {**qkv, **tensors}
        plan = lib.plan(case, **gpu.mask_fields(mask), **fields)
        runs[name] = gpu.graphed(lib.forward(plan, case, o, lse, seed=7))
    scores = batch * heads * gpu.visible(LENGTH, mask)
    times = gpu.interleaved(runs, 4 * d * scores)
    cell = {"d": d, "sq": LENGTH, "batch": batch, "heads": (heads, heads), "mask": mask}
    lines = []
    for name, ms in times.items():
        tflops = results.add({**cell, "scores": name}, "tilewise", ms, 4 * d * scores)
        print(f"  d {d} {mask:7} {name:8} {ms:8.4f} ms {tflops:6.0f} TFLOP/s  "
              f"{ms / times['plain']:6.3f} of plain", flush=True)
        if name in BOUNDS:
            bytes_ms = 2 * scores / terabytes_s / 1e9 if name == "bias" else 0
            bound = BOUNDS[name] + bytes_ms / times["plain"]
            lines.append(bounded(f"d {d} {mask} {name}", ms / times["plain"], bound))
    return lines


def visited(s, tile):
    """Scores of the tiles that a causal window visits in one head, for tiles of (rows, keys)."""
    total, (rows, keys) = 0, tile
    for row in range(0, s, rows):
        first, last = max(0, row - WINDOW) // keys, (min(row + rows, s) - 1) // keys
        total += rows * keys * (last - first + 1)
    return total


def windowed(lib, results, d):
    """The window's rate per visited tile against the full kernel's."""
    heads = gpu.WIDTH // d
    case = {n: gpu.random(1, WINDOW_LENGTH, heads, d) for n in "qkv"}
    o, lse = torch.empty_like(case["q"]), torch.empty(1, heads, WINDOW_LENGTH, device="cuda")
    runs, tile = {}, None
    for mask in ("full", f"window {WINDOW}"):
        plan = lib.plan(case, **gpu.mask_fields(mask))
        runs[mask] = gpu.graphed(lib.forward(plan, case, o, lse))
        tile = lib.tile(plan)
    times = gpu.interleaved(runs, 4 * heads * d * gpu.visible(WINDOW_LENGTH, f"window {WINDOW}"))
    full, window = (4 * heads * d * n / times[m] / 1e9 for m, n in zip(
        runs, (WINDOW_LENGTH**2, visited(WINDOW_LENGTH, tile))))
    print(f"  d {d} window {WINDOW}: {times[f'window {WINDOW}']:.4f} ms, {window:.0f} TFLOP/s of "
          f"tiles {tile[0]} x {tile[1]}; full {full:.0f}", flush=True)
    return [bounded(f"d {d} window {WINDOW} at {WINDOW_LENGTH}, rate", window / full,
                    LEAST_WINDOW_RATE)]


def costs(lib, results):
    terabytes_s = gpu.bandwidth()
    print(f"costs of semantics at {LENGTH}; copy {terabytes_s:.2f} TB/s")
    lines = []
    for d, mask in itertools.product((64, 128), ("full", "causal")):
        lines += modified(lib, results, d, mask, terabytes_s)
    for d in (64, 128):
        lines += windowed(lib, results, d)
    print("in times of the plain kernel (a bias may also take the time of its bytes):")
    print("\n".join(lines), flush=True)
