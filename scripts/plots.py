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
MASKS = ("full", "causal")


def on_h200(which):
    """Results of the plain grid: 2048 numbers of heads, no grouping, equal lengths."""
    def keep(r):
        return (r["pass"] == which and r["dtype"] == "bf16" and r["hq"] == r["hkv"]
                and r["hq"] * r["d"] == 2048 and r["d"] == r["dv"] and r["sq"] == r["sk"]
                and r["batch"] * r["sq"] == 16384 and "scores" not in r)
    return keep


def on_a_core(which):
    """One thread of the Xeon, PyTorch's naive attention left out."""
    def keep(r):
        return (r["pass"] == which and r["threads"] == 1 and "Xeon" in r["device"]
                and r["dtype"] in ("f32", "bf16") and r["kernel"] != "naive")
    return keep


# What to draw, where there are results: file, results, which of them, words, head dims.
PLOTS = [
    ("docs/h200_forward.svg", "bench/results/h200_forward.jsonl", on_h200("fwd"),
     "Forward, bf16, 16k tokens, H x D = 2048", (64, 128, 256)),
    ("docs/h200_backward.svg", "bench/results/h200_backward.jsonl", on_h200("bwd"),
     "Backward, bf16, 16k tokens, H x D = 2048", (64, 128, 256)),
    ("docs/cpu_forward.svg", "bench/results/cpu_peers.jsonl", on_a_core("fwd"),
     "Forward, one thread, 4 heads", (64, 128)),
    ("docs/cpu_backward.svg", "bench/results/cpu_peers.jsonl", on_a_core("bwd"),
     "Backward, one thread, 4 heads", (64, 128))]


def name_of(key, keys):
    """What a curve is called, with its dtype if there are several."""
    impl, kernel, dtype, _ = key
    name = {"cudnn": "cuDNN", "fa2": "FlashAttention-2", "torch": f"PyTorch, {kernel}"}.get(impl, impl)
    return name if len({k[2] for k in keys}) == 1 else f"{name} {dtype}"


def legend(names):
    """One line of names in the panels' colours."""
    parts, x = [], 16
    for i, name in enumerate(names):
        colour = plot.COLOURS[i % len(plot.COLOURS)]
        parts.append(plot.path([(x, 46), (x + 20, 46)], f'stroke="{colour}" stroke-width="3"'))
        parts.append(plot.text(x + 26, 50, name, 'font-size="14"'))
        x += 60 + 8 * len(name)
    return parts


def figure(results, keep, words, head_dims):
    kept = [r for r in results if keep(r)]
    keys = sorted({(r["impl"], r["kernel"], r["dtype"], r["threads"]) for r in kept})
    width, height = len(MASKS) * PANEL_WIDTH, HEAD + len(head_dims) * PANEL_HEIGHT
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" fill="#222">',
           '<rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="16" y="26" font-size="17" font-weight="bold">{html.escape(words)}</text>',
           *legend([name_of(key, keys) for key in keys])]
    for row, d in enumerate(head_dims):
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
    for name, results, keep, words, head_dims in PLOTS:
        if not (ROOT / results).is_file():
            continue
        drawn = figure(list(plot.read_results([ROOT / results])), keep, words, head_dims)
        path = ROOT / name
        if not check:
            path.write_text(drawn)
        elif not path.is_file() or path.read_text() != drawn:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what bench/results/ says: run ./dev docs")


if __name__ == "__main__":
    main()
