#!/usr/bin/env python3
"""What the Python package adds to a call: tilewise.attention on small PyTorch tensors, microseconds of
the host, against the native module's call alone (plan, outputs and workspace at hand: the C API and
0.3 us) and against PyTorch's own attention. All take turns, round by round; of each the lower quartile
counts, since a host is only ever disturbed to the slower side. On a GPU a round fits the driver's
queue, and the device is waited for in between. Exits with 1 past `--most`.

    python3 bench/python_overhead.py --device cuda
"""
import argparse
import platform
import sys
import time

import torch

import tilewise
from tilewise import _torch
from tilewise._call import Operands, planned, settings_of

ROUNDS, CALLS = 120, 40
SHAPE = (1, 128, 2, 64)  # (B, S, H, D)


def microseconds(calls, device):
    """The lower quartile over rounds of each call's mean."""
    took = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, mine in zip(calls, took):
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            mine.append((time.perf_counter() - began) / CALLS * 1e6)
            if device == "cuda":
                torch.cuda.synchronize()
    return [sorted(mine)[ROUNDS // 4] for mine in took]


class Calls:
    """The calls that are compared, each with everything it needs."""

    def __init__(self, device):
        shape = SHAPE if device == "cuda" else (1, 1, 1, 8)  # a CPU computes while the host waits
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.device, settings = device, {"threads": 1, "causal": True}
        self.plain = [torch.randn(shape, device=device, dtype=dtype) for _ in "qkv"]
        self.graded = [t.detach().requires_grad_() for t in self.plain]
        self.settings = settings
        tilewise.attention(*self.plain, **settings)
        self.o, self.lse = tilewise.attention(*self.graded, **settings, return_lse=True)
        self.d_o = torch.randn_like(self.o)

    def native(self):
        """(forward, forward with LSE, backward): nothing but the native module's work."""
        operands = Operands(*self.plain)
        plan = planned(_torch.Torch, operands, settings_of("attention", self.settings))
        o, lse = self.o.detach(), self.lse.detach()
        grads = (o, lse, self.d_o, None, *[torch.empty_like(t) for t in self.plain], None, None)
        room = _torch.Torch.launch(o, plan.backward_bytes)
        return (lambda: plan.native.run_forward(operands, (0, 0), (o, None), None),
                lambda: plan.native.run_forward(operands, (0, 0), (o, lse), None),
                lambda: plan.native.run_backward(operands, (0, 0), grads, room))

    def rows(self):
        """(what, call, the native call below it or None)"""
        forward, forward_lse, backward = self.native()
        attend, sdpa = tilewise.attention, torch.nn.functional.scaled_dot_product_attention
        swapped = [[t.transpose(1, 2) for t in some] for some in (self.plain, self.graded)]
        theirs = sdpa(*swapped[1], is_causal=True)
        d_o = self.d_o.transpose(1, 2)
        out = attend(*self.graded, **self.settings)

        def gradients(of, inputs, given):
            return lambda: torch.autograd.grad(of, inputs, given, retain_graph=True)
        return [
            ("forward", lambda: attend(*self.plain, **self.settings), forward),
            ("forward and LSE", lambda: attend(*self.plain, **self.settings, return_lse=True),
             forward_lse),
            ("forward, autograd", lambda: attend(*self.graded, **self.settings), forward_lse),
            ("backward", gradients(out, self.graded, self.d_o), backward),
            ("SDPA forward", lambda: sdpa(*swapped[0], is_causal=True), None),
            ("SDPA forward, autograd", lambda: sdpa(*swapped[1], is_causal=True), None),
            ("SDPA backward", gradients(theirs, self.graded, d_o), None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--most", type=float, default=20, help="us that the package may add (%(default)g)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    processor = platform.processor() or platform.machine()
    machine = torch.cuda.get_device_name() if args.device == "cuda" else processor
    print(f"tilewise {tilewise.__version__}, PyTorch {torch.__version__}, Python "
          f"{platform.python_version()}, {machine}: us per call")
    rows, good = Calls(args.device).rows(), True
    with torch.autograd.set_multithreading_enabled(False):
        wholes = microseconds([call for _, call, _ in rows], args.device)
        natives = microseconds([native for *_, native in rows if native], args.device)
    for (what, _, native), whole in zip(rows, wholes):
        words, below = f"{what:24s} {whole:6.1f}", natives.pop(0) if native else None
        if below is not None:
            words += f"   native {below:5.1f}   added {whole - below:5.1f}"
            # A backward goes through autograd's engine, which is PyTorch's.
            good = good and (what == "backward" or whole - below <= args.most)
        print(words)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
