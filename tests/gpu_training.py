#!/usr/bin/env python3
"""Training on a Hopper card and on the CPU: gpu_training.py path/to/libtilewise.so [seed]

A small causal language model learns a random Markov chain for 50 steps, everything float32 but the
attention, which is bfloat16. With the library's attention the loss must take the same course on
both devices, up to what rounding does to it: at most twice as far apart as the curves of attention
in float32 and of attention op by op in bfloat16."""
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import tilewise_torch as tw  # noqa: E402

STEPS, BATCH, LENGTH, VOCABULARY = 50, 4, 160, 64
WIDTH, HEADS, KV_HEADS, LAYERS = 128, 2, 1, 2


class LibraryAttention(torch.autograd.Function):
    """Causal attention of (B, S, H, D), by the library's plan for the tensors' device."""

    @staticmethod
    def forward(ctx, lib, q, k, v):
        tensors = {"q": q, "k": k, "v": v}
        plan = lib.plan(tensors, causal=1)
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
        lib.forward(plan, tensors, o, lse)()
        ctx.lib, ctx.plan = lib, plan
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        grads = {n: torch.empty_like(t) for n, t in (("dq", q), ("dk", k), ("dv", v))}
        given = {"o": o, "lse": lse, "d_o": d_o.contiguous()}
        ctx.lib.backward(ctx.plan, {"q": q, "k": k, "v": v}, {**given, **grads})()
        return None, grads["dq"], grads["dk"], grads["dv"]


def library_attention(lib):
    return lambda *qkv: LibraryAttention.apply(lib, *(t.bfloat16() for t in qkv)).float()


def op_by_op(dtype):
    """Standard attention, each operation's result rounded to `dtype`."""
    def attention(q, k, v):
        q, k, v = (t.to(dtype) for t in (q, k, v))
        groups, s = q.shape[2] // k.shape[2], q.shape[1]
        k, v = (t.repeat_interleave(groups, 2) for t in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
        p = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", p, v).float()
    return attention


class Model(torch.nn.Module):
    """A transformer: embedding, pre-norm blocks, a linear head."""

    def __init__(self):
        super().__init__()
        def linear(columns, rows):
            return torch.nn.Linear(columns, rows, bias=False)
        self.head_dim = WIDTH // HEADS
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict({
            "qkv": linear(WIDTH, (HEADS + 2 * KV_HEADS) * self.head_dim),
            "out": linear(WIDTH, WIDTH), "up": linear(WIDTH, 2 * WIDTH),
            "down": linear(2 * WIDTH, WIDTH)}) for _ in range(LAYERS))
        self.head = linear(WIDTH, VOCABULARY)

    def forward(self, tokens, attention):
        x = self.embedding(tokens) + self.places.weight
        for block in self.blocks:
            heads = block["qkv"](F.layer_norm(x, (WIDTH,))).unflatten(-1, (-1, self.head_dim))
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 2)
            x = x + block["out"](attention(q, k, v).flatten(2))
            x = x + block["down"](F.gelu(block["up"](F.layer_norm(x, (WIDTH,)))))
        return self.head(F.layer_norm(x, (WIDTH,)))


def markov_chain(seed):
    """(STEPS, BATCH, LENGTH + 1) tokens; each has a few likely successors."""
    generator = torch.Generator().manual_seed(seed)
    likely = torch.softmax(3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), -1)
    tokens = [torch.randint(VOCABULARY, (STEPS * BATCH,), generator=generator)]
    for _ in range(LENGTH):
        tokens.append(torch.multinomial(likely[tokens[-1]], 1, generator=generator)[:, 0])
    return torch.stack(tokens, 1).view(STEPS, BATCH, LENGTH + 1)


def losses(seed, device, attention):
    """The loss of each step."""
    torch.manual_seed(seed)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    curve = []
    for tokens in markov_chain(seed).to(device):
        logits = model(tokens[:, :-1], attention)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve).double().cpu()


def main():
    lib = tw.Library(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**31
    cpu = losses(seed, "cpu", library_attention(lib))
    exact = losses(seed, "cpu", op_by_op(torch.float32))
    rounded = losses(seed, "cpu", op_by_op(torch.bfloat16))
    gpu = losses(seed, "cuda" if torch.cuda.is_available() else "cpu", library_attention(lib))
    allowed = 2 * (rounded - exact).abs().max().item()
    apart = (gpu - cpu).abs().max().item()
    print(f"{STEPS} steps, seed {seed}: loss {gpu[0]:.4f} to {gpu[-1]:.4f}; GPU and CPU at most "
          f"{apart:.2g} apart, allowed {allowed:.2g}")
    return not (apart <= allowed and gpu[-1] < gpu[0] - 0.5)


if __name__ == "__main__":
    sys.exit(main())
