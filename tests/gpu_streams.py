#!/usr/bin/env python3
"""Streams, graphs and threads on a Hopper card: gpu_streams.py path/to/libtilewise.so [SEED PART]

However launches are made, the bits are those of a plain call: many streams at once, a first call
inside a graph's capture (which has to load its kernel there), replays on other tensors' contents, and
several threads each with its stream and its own last error."""
import pathlib
import sys
import threading

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import tilewise_torch as tw  # noqa: E402

failures = []


def problem(seed, d=64, s=300):
    generator = torch.Generator("cuda").manual_seed(seed)
    return {n: torch.randn(2, s, 4, d, generator=generator, device="cuda", dtype=torch.bfloat16)
            for n in "qkv"}


def expect_same(what, got, want):
    if not torch.equal(got, want):
        failures.append(f"{what}: {(got != want).sum().item()} numbers differ")


def plain(lib, case, **fields):
    o = torch.full_like(case["q"], float("nan"))
    lib.forward(lib.plan(case, **fields), case, o)()
    torch.cuda.synchronize()
    return o


def streams(lib):
    """Eight streams at once, each with its own problem, many times."""
    cases = [(problem(i, (64, 128)[i % 2], 100 + 150 * i), {"causal": i % 2}) for i in range(8)]
    want = [plain(lib, case, **fields) for case, fields in cases]
    got = [torch.full_like(w, float("nan")) for w in want]
    runs = [lib.forward(lib.plan(case, **fields), case, o) for (case, fields), o in zip(cases, got)]
    side = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(50):
        for o, run, stream in zip(got, runs, side):
            with torch.cuda.stream(stream):
                o.fill_(float("nan"))
                run()
    torch.cuda.synchronize()
    for i, (a, b) in enumerate(zip(got, want)):
        expect_same(f"stream {i}", a, b)


def first_call_in_capture(lib):
    """Head dims that nothing else here uses, so that the kernel is compiled while capturing."""
    case = problem(11, 48)
    o = torch.full_like(case["q"], float("nan"))
    run = lib.forward(lib.plan(case, causal=1), case, o)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for seed in (12, 13):
        for name, t in problem(seed, 48).items():
            case[name].copy_(t)
        o.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        expect_same(f"graph, inputs {seed}", o, plain(lib, case, causal=1))


def threads(lib):
    """Threads with streams of their own; every other one also makes an error of its own."""
    def work(i):
        case = problem(20 + i, 64, 100 + 10 * i)
        want = plain(lib, case)
        with torch.cuda.stream(torch.cuda.Stream()):
            o = torch.full_like(want, float("nan"))
            run = lib.forward(lib.plan(case), case, o)
            for _ in range(200):
                run()
            torch.cuda.current_stream().synchronize()
        expect_same(f"thread {i}", o, want)
        try:
            lib.plan(case, head_dim=1000 + i)
            failures.append(f"thread {i}: head_dim {1000 + i} was accepted")
        except RuntimeError as error:
            if str(1000 + i) not in str(error):
                failures.append(f"thread {i}: another's message: {error}")
    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def devices(lib):
    """Two devices, whichever is current: each call runs where its tensors are, and memory of the other
    is refused."""
    if torch.cuda.device_count() < 2:
        print("devices: left out, there is one")
        return
    case = problem(31)
    want = plain(lib, case, causal=1)
    there = {n: t.to("cuda:1") for n, t in case.items()}
    o = torch.full_like(there["q"], float("nan"))
    plan = lib.plan(there, causal=1)
    for current in (0, 1):
        with torch.cuda.device(current):
            o.fill_(float("nan"))
            torch.cuda.synchronize(1)
            lib.forward(plan, there, o)()
            torch.cuda.synchronize(1)
            expect_same(f"cuda:1 while cuda:{current} is current", o.cpu(), want.cpu())
    try:
        lib.forward(plan, {**there, "k": case["k"]}, o)()
        failures.append("k on cuda:0 was accepted for cuda:1")
    except RuntimeError as error:
        if "cuda:1" not in str(error):
            failures.append(f"k on cuda:0: message is {error}")

    def work(device):
        mine = {n: t.to(f"cuda:{device}") for n, t in case.items()}
        with torch.cuda.device(device):
            got = torch.full_like(mine["q"], float("nan"))
            torch.cuda.synchronize()
            run = lib.forward(lib.plan(mine, causal=1), mine, got)
            for _ in range(100):
                run()
            torch.cuda.synchronize()
        expect_same(f"thread of cuda:{device}", got.cpu(), want.cpu())
    workers = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


PARTS = (first_call_in_capture, streams, threads, devices)


def main():
    lib = tw.Library(sys.argv[1])
    for part in PARTS:
        if part.__name__ in sys.argv[3:] or not sys.argv[3:]:
            part(lib)
    print("\n".join(failures[:40]) or "the same bits")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
