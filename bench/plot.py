#!/usr/bin/env python3
"""Draws throughput against sequence length from benchmark results, as an SVG; no packages needed.

    bench/plot.py bench/results/cpu.jsonl --pass fwd --d 64 --mask causal -o docs/cpu_fwd.svg

One curve for each (impl, kernel, dtype, threads) that the filters leave; the latest line of a
measurement counts. The dashed line is the ceiling measured in the same runs.
"""
import argparse
import html
import json
import math
import os
import sys

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 64, 470, 78, 342, 700, 388


def read_results(paths):
    for path in paths:
        with open(path) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    sys.exit(f"plot.py: {path}:{number}: not a JSON object: {error}")


def gather(results, filters):
    """{(impl, kernel, dtype, threads): {S: FLOP/s}}, the highest ceiling, and the device."""
    curves, ceiling, devices = {}, 0.0, set()
    for r in results:
        if any(str(r.get(name)) != value for name, value in filters.items() if value is not None):
            continue
        key = (r["impl"], r["kernel"], r["dtype"], r["threads"])
        curves.setdefault(key, {})[r["sq"]] = r["tflops"] * 1e12
        ceiling = max(ceiling, (r.get("ceiling_tflops") or 0) * 1e12)
        devices.add(r["device"])
    return curves, ceiling, ", ".join(sorted(devices))


def nice_step(top):
    """A step of 1, 2 or 5 times a power of ten that leaves at most 6 lines below `top`."""
    power = 10 ** math.floor(math.log10(top / 6))
    return next(m * power for m in (1, 2, 5, 10) if top / (m * power) <= 6)


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(str(words))}</text>'


def path(points, more):
    return f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}" fill="none" {more}/>'


def draw(curves, ceiling, device, title, legend=True):
    lengths = sorted({s for curve in curves.values() for s in curve if s > 0})
    top = 1.05 * max([ceiling] + [f for curve in curves.values() for f in curve.values()])
    unit, name = (1e12, "TFLOP/s") if top > 2e12 else (1e9, "GFLOP/s")
    low, span = math.log2(lengths[0]), max(math.log2(lengths[-1] / lengths[0]), 1e-9)

    def x(s):
        return LEFT + (RIGHT - LEFT) * (math.log2(s) - low) / span

    def y(flops):
        return BOTTOM - (BOTTOM - TOP) * flops / top

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">',
           '<rect width="100%" height="100%" fill="#fff"/>',
           text(16, 24, title, 'font-size="15" font-weight="bold"'),
           text(16, 42, device, 'fill="#555"')]
    step = nice_step(top)
    for i in range(int(top / step) + 1):
        svg.append(path([(LEFT, y(i * step)), (RIGHT, y(i * step))], 'stroke="#e4e4e4"'))
        svg.append(text(LEFT - 8, y(i * step) + 4, f"{i * step / unit:g}", 'text-anchor="end"'))
    for s in lengths:
        svg.append(path([(x(s), TOP), (x(s), BOTTOM)], 'stroke="#e4e4e4"'))
        svg.append(text(x(s), BOTTOM + 18, s, 'text-anchor="middle"'))
    svg.append(text((LEFT + RIGHT) / 2, BOTTOM + 36, "sequence length", 'text-anchor="middle"'))
    svg.append(text(LEFT - 8, TOP - 6, name, 'text-anchor="end"'))
    if ceiling:
        svg.append(path([(LEFT, y(ceiling)), (RIGHT, y(ceiling))],
                        'stroke="#666" stroke-dasharray="5 4"'))
        svg.append(text(RIGHT + 8, y(ceiling) + 4, "matrix product", 'fill="#666"'))
    for i, (key, curve) in enumerate(sorted(curves.items())):
        if not curve:
            continue  # keeps the others' colours
        colour = COLOURS[i % len(COLOURS)]
        points = [(x(s), y(f)) for s, f in sorted(curve.items()) if s > 0]
        svg.append(path(points, f'stroke="{colour}" stroke-width="2"'))
        svg += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        if not legend:
            continue
        impl, kernel, dtype, threads = key
        row = TOP + 40 + 17 * i
        svg.append(path([(RIGHT + 16, row), (RIGHT + 34, row)], f'stroke="{colour}" stroke-width="2"'))
        svg.append(text(RIGHT + 40, row + 4, f"{impl} {kernel} {dtype}, {threads} thr."))
    return "\n".join(svg + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="files of JSON lines")
    for field in ("pass", "dtype", "d", "mask", "batch", "hq", "threads", "impl", "kernel"):
        parser.add_argument(f"--{field}", dest=f"only_{field}", help=f"only this {field}")
    parser.add_argument("-o", "--out", required=True, help="the SVG to write")
    parser.add_argument("--title", help="default: the filters")
    args = parser.parse_args()
    filters = {name[5:]: value for name, value in vars(args).items() if name.startswith("only_")}
    curves, ceiling, device = gather(read_results(args.results), filters)
    if not curves:
        sys.exit("plot.py: no line of the results passes the filters")
    title = args.title or "Attention, " + ", ".join(
        f"{name} {value}" for name, value in filters.items() if value is not None)
    temporary = f"{args.out}.tmp"
    with open(temporary, "w") as out:
        out.write(draw(curves, ceiling, device, title))
    os.replace(temporary, args.out)


if __name__ == "__main__":
    main()
