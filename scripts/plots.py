#!/usr/bin/env python3
"""Draws the README's plots from bench/results/: a panel for each head dim and mask. With --check it
draws nothing and fails if a plot is not what it would draw. `./dev docs` runs it."""
import argparse
import html
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import plot  # noqa: E402

PANEL_WIDTH, PANEL_HEIGHT, HEAD = 570, plot.HEIGHT, 64  # a panel is a plot without its legend
NAMES = {"tilewise": "tilewise", "cudnn": "cuDNN", "fa2": "FlashAttention-2"}
HEAD_DIMS, MASKS = (64, 128, 256), ("full", "causal")

# What to draw, where there are results: file, results, pass and words.
PLOTS = [(f"docs/h200_{name}.svg", f"bench/results/h200_{name}.jsonl", which,
          f"{name.capitalize()}, bf16, 16k tokens, H x D = 2048")
         for name, which in (("forward", "fwd"), ("backward", "bwd"))]


def square(r):
    """Whether a result is of the plain grid: 2048 numbers of heads, no grouping, equal lengths."""
    return r["hq"] == r["hkv"] and r["hq"] * r["d"] == 2048 and r["d"] == r["dv"] \
        and r["sq"] == r["sk"] and r["batch"] * r["sq"] == 16384 and "scores" not in r


def legend(impls):
    """One line of names in the panels' colours."""
    parts, x = [], 16
    for i, impl in enumerate(impls):
        colour = plot.COLOURS[i % len(plot.COLOURS)]
        parts.append(plot.path([(x, 46), (x + 20, 46)], f'stroke="{colour}" stroke-width="3"'))
        parts.append(plot.text(x + 26, 50, NAMES.get(impl, impl), 'font-size="14"'))
        x += 60 + 8 * len(NAMES.get(impl, impl))
    return parts


def figure(results, which, words):
    kept = [r for r in results if r["pass"] == which and r["dtype"] == "bf16" and square(r)]
    keys = sorted({(r["impl"], r["kernel"], r["dtype"], r["threads"]) for r in kept})
    width, height = len(MASKS) * PANEL_WIDTH, HEAD + len(HEAD_DIMS) * PANEL_HEIGHT
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" fill="#222">',
           '<rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="16" y="26" font-size="17" font-weight="bold">{html.escape(words)}</text>',
           *legend([key[0] for key in keys])]
    for row, d in enumerate(HEAD_DIMS):
        for column, mask in enumerate(MASKS):
            curves, ceiling, device = plot.gather(kept, {"d": str(d), "mask": mask})
            if not curves:
                continue
            curves = {key: curves.get(key, {}) for key in keys}  # the same colours everywhere
            panel = plot.draw(curves, ceiling, device, f"D {d}, {mask}", legend=False)
            svg.append(panel.replace(
                f'viewBox="0 0 {plot.WIDTH} {plot.HEIGHT}" width="{plot.WIDTH}"',
                f'x="{column * PANEL_WIDTH}" y="{HEAD + row * PANEL_HEIGHT}" '
                f'viewBox="0 0 {PANEL_WIDTH} {plot.HEIGHT}" width="{PANEL_WIDTH}"', 1))
    return "\n".join(svg + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, results, which, words in PLOTS:
        if not (ROOT / results).is_file():
            continue
        drawn = figure(list(plot.read_results([ROOT / results])), which, words)
        path = ROOT / name
        if not check:
            path.write_text(drawn)
        elif not path.is_file() or path.read_text() != drawn:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what bench/results/ says: run ./dev docs")


if __name__ == "__main__":
    main()
