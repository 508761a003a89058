#!/usr/bin/env python3
"""Everything that only a Hopper GPU can tell, from a build folder: gpu_suite.py [build] [--only WORD]

Runs each piece in a process of its own, prints a line for it and what failed of it, and ends with
exit code 1 if any did. Wants python3 with PyTorch; compute-sanitizer where it is to be had. Nothing
is built. `./dev gpu-test` builds first, `./dev gpu-test --prebuilt` doesn't."""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 280
WORKERS = min(8, os.cpu_count() or 1)
# The pieces share the cores, and threads that wait had better sleep.
THREADS = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // WORKERS)),
           "OMP_WAIT_POLICY": "PASSIVE"}
SEEDS = range(1, 7)  # of `tilewise check --grid`; what each needs is compiled once
# Small problems that touch every part of the kernels, for tools that slow them down a hundredfold.
SMALL = {
    "causal-gqa": "--seq-q 130 --seq-kv 200 --head-dim 64 --heads-q 2 --heads-kv 1 --causal",
    "window": "--batch 2 --seq-q 100 --seq-kv 257 --head-dim 128 --window 50,20 --dtype f16",
    "wide": "--seq-q 65 --seq-kv 130 --head-dim 256",
    "few-queries": "--batch 2 --seq-q 5 --seq-kv 300 --head-dim 128 --heads-q 8 --heads-kv 2 "
                   "--causal --sink on",
    "modified": "--seq-q 70 --seq-kv 300 --head-dim 128 --head-dim-v 64 --softcap 10 --alibi on "
                "--sink on --bias on --dropout 0.2",
    "far": "--seq-q 130 --seq-kv 200 --head-dim 64 --heads-q 2 --heads-kv 1 --causal "
           "--inputs huge-logits",
    "far-wide": "--seq-q 70 --seq-kv 130 --head-dim 256 --inputs huge-logits --deterministic",
    "alibi": "--seq-q 130 --seq-kv 300 --head-dim 128 --heads-q 2 --alibi on",
    "packed": "--cu-seqlens-q {lengths} --cu-seqlens-k {lengths} --head-dim 64 --causal",
}
ATTEND = ["", "--causal", "--window 40,7 --align top-left", "--softcap 8", "--dropout 0.3 --seed 5",
          "--alibi {folder}/slopes.npy --sink {folder}/slopes.npy"]


def parts_of(script):
    """What a script's PARTS = (...) lists: each runs by itself, so that kernels compile in parallel."""
    found = re.search(r"^PARTS = \(([^)]*)\)", script.read_text(), re.M)
    return re.findall(r"\w+", found.group(1)) if found else [""]


class Suite:
    """The pieces, as (name, whether it must run alone, function that raises when it fails)."""

    def __init__(self, build, folder):
        self.command, self.library = build / "bin/tilewise", build / "lib/libtilewise.so"
        self.host_time, self.folder = build / "bin/tilewise_host_time", folder
        self.primitives = build / "bin/tilewise_primitives"
        self.seed = time.time_ns() % 2**31
        np.save(folder / "lengths.npy", np.array([0, 70, 70, 71, 200], np.int32))

    def pieces(self):
        found = [("host time", True, self.said([self.host_time])),
                 ("primitives", False, self.said([self.primitives]))]
        for script in sorted(HERE.glob("gpu_*.py")):
            if script.name == pathlib.Path(__file__).name:
                continue
            for part in parts_of(script):
                found.append((f"{script.stem} {part}".strip(), False, self.said(
                    [sys.executable, script, self.library, str(self.seed), *part.split()])))
        found += [("attend on cpu and cuda", False, self.attend)]
        found += [(f"check --grid, seed {n}", False,
                   self.said([self.command, "check", "--grid", "--quick", "--device", "cuda",
                              "--input-seed", str(n)])) for n in SEEDS]
        if sanitizer := shutil.which("compute-sanitizer"):
            for tool in ("memcheck", "racecheck", "synccheck"):
                found += [(f"{tool}, {name}", False, self.said(
                    [sanitizer, "--tool", tool, "--error-exitcode", "9", *self.check(flags)],
                    **{"TILEWISE_RACECHECK": "1"} if tool == "racecheck" else {}))
                    for name, flags in SMALL.items()]
            # Not racecheck: it doesn't follow a token that is passed on by bar.arrive (tile/turn.h).
            found += [(f"{tool}, primitives", False, self.said(
                [sanitizer, "--tool", tool, "--error-exitcode", "9", self.primitives]))
                for tool in ("memcheck", "synccheck")]
        else:
            print("compute-sanitizer is not here: its pieces are left out")
        return found

    def check(self, flags):
        words = flags.format(lengths=self.folder / "lengths.npy").split()
        dtype = [] if "--dtype" in words else ["--dtype", "bf16"]
        return [self.command, "check", "--device", "cuda", *words, *dtype]

    @staticmethod
    def said(words, **environment):
        """A piece that runs a program and returns the last line it says."""
        def piece():
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True,
                                  timeout=LIMIT_S, env=os.environ | THREADS | environment)
            lines = (done.stdout + done.stderr).strip().splitlines() or ["(silent)"]
            if done.returncode:
                raise RuntimeError(f"exit code {done.returncode}\n" + "\n".join(lines[-25:]))
            return lines[-1]
        return piece

    def attend(self):
        """`tilewise attend --device cuda` against `--device cpu`, on the same files."""
        rng, worst = np.random.default_rng(), 0.0
        shapes = {"q": (2, 333, 6, 64), "k": (2, 400, 3, 64), "v": (2, 400, 3, 64), "slopes": (6,)}
        for name, shape in shapes.items():
            values = rng.standard_normal(shape, np.float32)
            np.save(self.folder / f"{name}.npy", np.abs(values) / 8 if name == "slopes" else values)
        for flags in ATTEND:
            results = []
            for device in ("cpu", "cuda"):
                out = [f"--{n}={self.folder}/{n}-{device}.npy" for n in ("out", "lse")]
                inputs = [f"--{n}={self.folder}/{n}.npy" for n in "qkv"]
                self.said([self.command, "attend", *inputs, *out, "--dtype", "bf16", "--device",
                           device, *flags.format(folder=self.folder).split()])()
                results.append([np.load(self.folder / f"{n}-{device}.npy").astype(np.float64)
                                for n in ("out", "lse")])
            (o, lse), (gpu_o, gpu_lse) = results
            apart = np.linalg.norm(gpu_o - o) / np.linalg.norm(o)
            worst = max(worst, apart)
            if not apart < 8e-3 or not np.array_equal(np.isinf(lse), np.isinf(gpu_lse)):
                raise RuntimeError(f"attend {flags}: O {apart:.3g} apart")
            finite = np.isfinite(lse)
            lse_apart = np.abs(lse - gpu_lse)[finite].max(initial=0)
            if not lse_apart < 1e-4:  # of scores up to 100
                raise RuntimeError(f"attend {flags}: LSE {lse_apart:.3g} apart")
        return f"{len(ATTEND)} problems, O at most {worst:.2g} apart"


def run_piece(piece):
    name, _, work = piece
    began = time.time()
    try:
        good, words = True, work()
    except Exception as error:  # pylint: disable=broad-except
        good, words = False, str(error)
    print(f"{'ok  ' if good else 'FAIL'} {time.time() - began:6.1f} s  {name}: {words}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=HERE.parent / "build")
    parser.add_argument("--only", default="", help="pieces whose names hold this")
    args = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        pieces = [p for p in Suite(args.build.resolve(), pathlib.Path(folder)).pieces()
                  if args.only in p[0]]
        good = [run_piece(p) for p in pieces if p[1]]
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            good += pool.map(run_piece, [p for p in pieces if not p[1]])
    print(f"gpu-test: {sum(good)} of {len(good)} pieces passed in {time.time() - began:.0f} s")
    return not (good and all(good))


if __name__ == "__main__":
    sys.exit(main())
