#!/usr/bin/env python3
"""Backward attention on a GPU, all of its kernels counted: tilewise, through its C API, against
PyTorch's cuDNN and FlashAttention-2, interleaved in one process. Prints tables; --json appends the
project's benchmark records.
gpu_backward_peers.py path/to/libtilewise.so [--json FILE] [--dims 64,128] [--both]"""
import argparse

import gpu_bench as gpu
import torch
from gpu_bench import tw

ATEN = torch.ops.aten


def cudnn(q, k, v, d_o, causal):
    """(what runs forward, what runs backward on what forward returned)."""
    def forward():
        return ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)

    def backward(saved):
        o, lse, cq, ck, mq, mk, seed, offset, _ = saved
        return ATEN._scaled_dot_product_cudnn_attention_backward(
            d_o, q, k, v, o, lse, seed, offset, None, cq, ck, mq, mk, 0.0, causal)
    return forward, backward


def fa2(q, k, v, d_o, causal):
    """The same of FlashAttention-2."""
    def forward():
        return ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)

    def backward(saved):
        o, lse, cq, ck, mq, mk, seed, offset, _ = saved
        return ATEN._scaled_dot_product_flash_attention_backward(
            d_o, q, k, v, o, lse, cq, ck, mq, mk, 0.0, causal, seed, offset)
    return forward, backward


class Problem:
    """One problem of gpu.TOKENS tokens, and what runs on it."""

    def __init__(self, d, s, heads, mask):
        batch, (hq, hk) = gpu.TOKENS // s, heads
        shape = {"q": hq, "k": hk, "v": hk, "o": hq, "d_o": hq, "dq": hq, "dk": hk, "dv": hk}
        self.t = {n: torch.randn(batch, s, h, d, device="cuda", dtype=torch.bfloat16)
                  for n, h in shape.items()}
        self.t["lse"] = torch.empty(batch, hq, s, device="cuda")
        self.fields = gpu.mask_fields(mask)
        self.flops = 10 * batch * hq * d * gpu.visible(s, mask)

    def tilewise(self, lib, deterministic, both):
        inputs = {n: self.t[n] for n in "qkv"}
        plan = lib.plan(inputs, deterministic=deterministic, **self.fields)
        forward = lib.forward(plan, inputs, self.t["o"], self.t["lse"])
        forward()
        grads = {n: self.t[n] for n in ("o", "lse", "d_o", "dq", "dk", "dv")}
        backward = lib.backward(plan, inputs, grads)
        if not both:
            return backward

        def run():
            forward()
            backward()
        return run

    def peer(self, make, both):
        tensors = [self.t[n].transpose(1, 2) for n in ("q", "k", "v", "d_o")]
        forward, backward = make(*tensors, bool(self.fields["causal"]))
        if both:
            return lambda: backward(forward())
        saved = forward()
        return lambda: backward(saved)


class Bench:
    """Measures cells."""

    def __init__(self, args):
        self.libs = {("tilewise" if i == 0 else f"tilewise {path}"): tw.Library(path)
                     for i, path in enumerate(args.libraries)}
        self.args = args
        self.results = gpu.Results("fwd+bwd" if args.both else "bwd", args.json)

    def cell(self, d, s, heads, mask):
        """{implementation: TFLOP/s} for one problem."""
        problem = Problem(d, s, heads, mask)
        runs = {}
        for name, lib in self.libs.items():
            runs[name] = gpu.graphed(problem.tilewise(lib, False, self.args.both))
            runs[name + " fixed"] = gpu.graphed(problem.tilewise(lib, True, self.args.both))
        if mask in ("full", "causal") and heads[0] == heads[1]:
            runs["cudnn"] = problem.peer(cudnn, self.args.both)
            if self.args.fa2:
                runs["fa2"] = problem.peer(fa2, self.args.both)
        flops = problem.flops * (1.4 if self.args.both else 1)
        cell = {"d": d, "sq": s, "batch": gpu.TOKENS // s, "heads": heads, "mask": mask}
        return {name: self.results.add(cell, name, ms, flops)
                for name, ms in gpu.interleaved(runs, flops).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--json", help="append one JSON object a line")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default=",".join(map(str, gpu.LENGTHS)))
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--heads", default="")
    parser.add_argument("--both", action="store_true", help="forward and backward")
    parser.add_argument("--fa2", action="store_true")
    args = parser.parse_args()
    bench = Bench(args)
    for d in map(int, args.dims.split(",")):
        for mask in args.masks.split(","):
            h = gpu.WIDTH // d
            heads = tuple(map(int, args.heads.split("/"))) if args.heads else (h, h)
            gpu.table(f"d {d}, heads {heads[0]}/{heads[1]}, {mask}",
                      list(map(int, args.lengths.split(","))),
                      lambda s, d=d, mask=mask, heads=heads: bench.cell(d, s, heads, mask))
    bench.results.save()


if __name__ == "__main__":
    main()
