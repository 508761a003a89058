"""The examples of README.md and docs/python.md run, and the support table claims nothing that the kernel
tables don't have (TILEWISE_WRITE_DOCS=1 writes it)."""
import os
import pathlib
import re

import pytest

import tilewise

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "python.md"
OPTIONAL = {"torch", "jax", "transformers", "flash_attn"}


def examples():
    for path in (ROOT / "README.md", DOCS):
        text = path.read_text()
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
            line = text.count("\n", 0, found.start()) + 2
            yield pytest.param(path, line, found[1], id=f"{path.name}:{line}")


@pytest.mark.parametrize(("path", "line", "code"), list(examples()))
def test_example(path, line, code):
    for name in OPTIONAL:
        if re.search(rf"^(?:import|from) {name}\b", code, re.M):
            pytest.importorskip(name)
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "example"})


FEATURES = [
    ("plain, causal, window, GQA", {"causal": True}), ("softcap", {"softcap": 20.0}),
    ("ALiBi", {"alibi_slopes": (8,)}), ("bias", {"bias": (1, 8, 256, 256)}), ("sink", {"sink": (8,)}),
    ("dropout", {"dropout_p": 0.1}), ("padded (`seqused`)", {"seqused_kv": (2,)}),
    ("D = 512", {"head_dim": 512}), ("D = 20", {"head_dim": 20}),
]
PLACES = [("cpu", "float32"), ("cpu", "bfloat16"), ("cuda", "float32"), ("cuda", "bfloat16")]


def cell(device, dtype, options):
    """What runs: "fa2, fa2" for the forward and the backward, "-" for nothing."""
    options = dict(options)
    shape = (2, 256, 8, options.pop("head_dim", 64))
    try:
        plan = tilewise.plan(shape, shape, shape, dtype=dtype, device=device, **options)
    except NotImplementedError:
        return "-, -"
    return f"{plan.forward['kernel'] or '-'}, {plan.backward['kernel'] or '-'}"


def table():
    lines = ["| kernel of the forward, of the backward | "
             + " | ".join(f"{device} {dtype}" for device, dtype in PLACES) + " |",
             "| --- |" + " --- |" * len(PLACES)]
    for words, options in FEATURES:
        lines.append(f"| {words} | " + " | ".join(cell(*p, options) for p in PLACES) + " |")
    return lines


MARKS = re.compile(r"(<!-- support: .*? -->\n)(.*?)(<!-- end of support -->)", re.S)


def test_support_table():
    text, actual = DOCS.read_text(), table()
    if os.environ.get("TILEWISE_WRITE_DOCS"):
        body = "\n".join(actual) + "\n"
        DOCS.write_text(MARKS.sub(lambda m: m[1] + body + m[3], text))
        return
    documented = MARKS.search(text)[2].strip().splitlines()
    assert len(documented) == len(actual), "TILEWISE_WRITE_DOCS=1 writes the table anew"
    for claim, fact in zip(documented[2:], actual[2:]):
        for c, f in zip(re.split(r"[|,]", claim), re.split(r"[|,]", fact)):
            # What has come since may be missing; what is claimed must be there.
            assert c.strip() in (f.strip(), "-"), f"claimed: {claim}; there is: {fact}"
