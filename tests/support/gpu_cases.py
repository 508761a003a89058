"""What the GPU's accuracy tests are made of: guarded memory, random inputs, packed sequences among
NaN, dropout's mask, and the loop over a script's parts."""
import itertools
import math
import sys
import time

import torch

GUARD = 4096
failures = []


def poisoned(shape, dtype):
    """(tensor, its guarded buffer): NaN inside and around."""
    n = math.prod(shape)
    buffer = torch.full((n + 2 * GUARD,), math.nan, dtype=dtype, device="cuda")
    return buffer[GUARD:GUARD + n].view(shape), buffer


def guards_hold(buffer):
    return bool(torch.isnan(buffer[:GUARD]).all() and torch.isnan(buffer[-GUARD:]).all())


def inputs(kind, shape, dtype):
    x = torch.randn(shape, device="cuda")
    if kind == "outliers":
        x += 10 * torch.randn_like(x) * (torch.rand_like(x) < 1e-3)
    elif kind == "constant":
        x = x[..., :1].expand(shape).contiguous()
    elif kind == "large":
        x *= 100  # logits of 1e4
    return x.to(dtype)


def huge(role, sign, shape, dtype):
    """Queries and keys whose logits, at a scale of 1 / sqrt(D), are 1e4 times `sign` and some
    hundreds apart; every number is exact in 8 bits (src/reference/fill.cpp)."""
    d, unit = shape[-1], 32
    signs = torch.randint(0, 2, shape, device="cuda") * 2 - 1
    if role == "k":
        x = (signs[..., :1] * torch.randint(1, 5, (*shape[:-1], 1), device="cuda")).repeat_interleave(d, -1)
        x[..., 0] = 4
    else:
        x = signs * (torch.randint(0, 2, shape, device="cuda") * 2 + 1)
        x[..., 0] = sign * round(2.5 * d ** 0.5)
    return (unit * x).to(dtype)


class Packed:
    """Sequences end to end by cu_seqlens; keys and values in slots that are longer than what
    seqused says, and all that is not a sequence's own holds NaN."""

    def __init__(self, lengths_q, lengths_k, heads, like):
        (h, hk), (d, dtype), slack = heads, like, 40
        self.lengths = list(zip(lengths_q, lengths_k))
        slots = [x + slack for x in lengths_k]
        self.at_q = [0, *itertools.accumulate(lengths_q)]
        self.at_k = [0, *itertools.accumulate(slots)]
        self.sizes = {"batch": len(lengths_q), "seq_q": max(lengths_q), "seq_kv": max(slots)}
        kv = [torch.full((self.at_k[-1], hk, d), math.nan, device="cuda", dtype=dtype)
              for _ in "kv"]
        for t, (at, used) in itertools.product(kv, zip(self.at_k, lengths_k)):
            t[at:at + used] = inputs("normal", (used, hk, d), dtype)
        def ints(x):
            return torch.tensor(x, dtype=torch.int32, device="cuda")
        self.case = {"q": inputs("normal", (self.at_q[-1], h, d), dtype), "k": kv[0], "v": kv[1],
                     "cu_seqlens_q": ints(self.at_q), "cu_seqlens_kv": ints(self.at_k),
                     "seqused_kv": ints(lengths_k)}

    def rows(self, i):
        """Where sequence i lies: (its queries, its keys in use, the rest of its slot)."""
        q, kv, (a, used) = self.at_q[i], self.at_k[i], self.lengths[i]
        return slice(q, q + a), slice(kv, kv + used), slice(kv + used, self.at_k[i + 1])

    def one(self, i):
        """Sequence i as a dense problem of batch 1."""
        q, kv, _ = self.rows(i)
        return {"q": self.case["q"][None, q], "k": self.case["k"][None, kv],
                "v": self.case["v"][None, kv]}


def philox(counter, key):
    """Philox4x32-10 on int64 tensors that hold 32 bits (src/core/philox.h)."""
    low = 0xFFFFFFFF
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32 & low) ^ c[1] ^ k[0], p1 & low, (p0 >> 32 & low) ^ c[3] ^ k[1], p0 & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c


def dropout_mask(shape, p, seed, offset=0):
    """What each probability (B, Hq, Sq, Sk) is multiplied with: 0, or 1 / (1 - p)."""
    def halves(x):
        return [torch.tensor(x >> s & 0xFFFFFFFF, device="cuda", dtype=torch.int64)
                for s in (0, 32)]
    key = philox([*halves(offset), halves(0x74696C65)[0], halves(0x77697365)[0]], halves(seed))[:2]
    at = [torch.arange(n, device="cuda", dtype=torch.int64).view([-1 if i == axis else 1
                                                                  for i in range(4)])
          for axis, n in enumerate(shape)]
    batch, head, i, j = torch.broadcast_tensors(*at)
    words = philox([j // 16 * 4 + j % 8 // 2, i // 16 * 8 + i % 8, head, batch], key)
    word = torch.stack(words).gather(0, ((i // 8 % 2) * 2 + j // 8 % 2)[None])[0]
    bits = word >> 16 * (j % 2) & 0xFFFF
    threshold = int(p * 65536 + 0.5)
    return (bits >= threshold).double() * (65536 / (65536 - threshold))


def run_parts(open_library, parts):
    """SCRIPT LIBRARY [SEED [PART,PART]]: runs them, prints what failed; the exit code."""
    lib = open_library(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**31
    wanted = sys.argv[3].split(",") if len(sys.argv) > 3 else [part.__name__ for part in parts]
    torch.manual_seed(seed)
    print(f"{torch.cuda.get_device_name()}, seed {seed}", flush=True)
    for part in parts:
        if part.__name__ not in wanted:
            continue
        start, before = time.time(), len(failures)
        count = part(lib)
        print(f"{part.__name__}: {count or ''} {len(failures) - before} failures, "
              f"{time.time() - start:.1f} s", flush=True)
    print("\n".join(failures[:40]) or "all within the rule")
    return bool(failures)
