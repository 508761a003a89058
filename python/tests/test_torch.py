"""tilewise.attention on torch tensors against float64, values and gradients."""
import itertools

import pytest
import torch
from oracle import attention as standard
from oracle import check, hold, redraw, same

import tilewise
from tilewise import _native
from tilewise._arrays import Torch

MASKS = [{}, {"causal": True}, {"window": (7, 3)}, {"causal": True, "window": (9, -1)},
         {"causal": True, "align": "top-left"}]
SHAPES = [(2, 3, 1, 33, 33, 16, 16), (1, 4, 2, 20, 47, 64, 32), (2, 2, 2, 31, 17, 40, 40),
          (1, 1, 1, 1, 65, 8, 8)]


def dtypes(device):
    return (torch.float16, torch.bfloat16) if device == "cuda" else (
        torch.float32, torch.float16, torch.bfloat16)


def made(shape, dtype, device, wanted=True):
    return torch.randn(shape, device=device).to(dtype).requires_grad_(wanted)


def qkv(shape, dtype, device):
    b, hq, hk, sq, sk, d, dv = shape
    return {"q": made((b, sq, hq, d), dtype, device), "k": made((b, sk, hk, d), dtype, device),
            "v": made((b, sk, hk, dv), dtype, device)}


def run(**kwargs):
    return tilewise.attention(**kwargs, return_lse=True)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks(shape, mask, device, torch_seed):
    for dtype in dtypes(device):
        check(run, qkv(shape, dtype, device), mask)


@pytest.mark.parametrize("terms", [{"scale": 0.3}, {"softcap": 15.0}, {"causal": True, "softcap": 5.0}],
                         ids=str)
def test_scores(terms, device, torch_seed):
    for dtype in dtypes(device):
        check(run, qkv((2, 4, 2, 30, 50, 32, 32), dtype, device), terms)


def test_bias_sink_and_slopes(device, torch_seed):
    b, h, sq, sk = 2, 4, 30, 50
    for dtype, dims in itertools.product(dtypes(device), [(b, h, sq, sk), (1, h, 1, sk), (b, 1, sq, 1)]):
        case = qkv((b, h, 2, sq, sk, 32, 32), dtype, device)
        case["bias"] = made(dims, torch.float32, device)
        case["sink"] = made((h,), torch.float32, device)
        case["alibi_slopes"] = torch.rand(h, device=device) / 8
        check(run, case, {"causal": True})


def test_bias_of_the_inputs_dtype_has_its_gradient(device, torch_seed):
    for dtype in dtypes(device):
        case = qkv((1, 2, 2, 9, 11, 16, 16), dtype, device)
        case["bias"] = made((1, 2, 9, 11), dtype, device)
        check(run, case, {})


def test_slices_of_one_projection(device, torch_seed):
    for dtype in dtypes(device):
        packed = made((2, 40, 3, 4, 32), dtype, device)
        o = tilewise.attention(*packed.unbind(2), causal=True)
        dense = [t.detach().contiguous().requires_grad_() for t in packed.unbind(2)]
        o2 = tilewise.attention(*dense, causal=True)
        assert torch.equal(o, o2)
        g = torch.randn_like(o).transpose(1, 2).contiguous().transpose(1, 2)
        (mine,) = torch.autograd.grad(o, packed, g)
        theirs = torch.autograd.grad(o2, dense, g)
        same(device, [mine], [torch.stack(theirs, 2)])


def test_only_what_is_asked_for(device, torch_seed):
    case = qkv((1, 2, 2, 9, 9, 16, 16), torch.float16, device)
    case["k"].requires_grad_(False)
    tilewise.attention(**case).sum().backward()
    assert case["k"].grad is None and case["q"].grad is not None
    with torch.no_grad():
        assert not tilewise.attention(**case).requires_grad


def test_gradient_through_lse_alone(device, torch_seed):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    case = qkv((1, 2, 2, 9, 12, 16, 16), dtype, device)

    def draw():
        redraw(case.values())
        lses = [run(**case)[1], *(standard(**case, dtype=t)[1] for t in (torch.float64, dtype))]
        yield ("dq", *(torch.autograd.grad(lse.sum(), case["q"])[0] for lse in lses))
    hold(draw, dtype)


def test_packed(device, torch_seed):
    lengths = [(0, 5), (13, 13), (1, 0), (40, 21)]
    cu = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device=device)
          for x in zip(*lengths)]

    def padded(q, k, v, **how):
        parts = [tuple(slice(*c[i:i + 2].tolist()) for c in cu) for i in range(len(lengths))]
        return torch.cat([standard(q[None, rows], k[None, keys], v[None, keys], causal=True, **how)[0][0]
                          for rows, keys in parts])

    for dtype in dtypes(device):
        q = made((int(cu[0][-1]), 4, 32), dtype, device)
        k, v = (made((int(cu[1][-1]), 2, 32), dtype, device) for _ in "kv")

        def draw(q=q, k=k, v=v, dtype=dtype):
            redraw((q, k, v))
            o, lse = tilewise.attention_varlen(q, k, v, *cu, max_seqlen_q=40, max_seqlen_kv=21,
                                               causal=True, return_lse=True)
            assert lse.shape == (4, q.shape[0])
            d_o = torch.randn_like(o)
            outs = [o, *(padded(q, k, v, dtype=t, from_rounded=r)
                         for t, r in ((torch.float64, False), (dtype, False), (dtype, True)))]
            grads = [torch.autograd.grad(x, (q, k, v), d_o.to(x.dtype)) for x in outs]
            return [("o", *outs), *((n, *g) for n, g in zip(("dq", "dk", "dv"), zip(*grads)))]
        hold(draw, dtype)


def test_unused_rows_hold_anything(device, torch_seed):
    dtype = torch.float16
    case = {n: t.detach() for n, t in qkv((2, 2, 2, 20, 20, 16, 16), dtype, device).items()}
    used = torch.tensor([13, 20], dtype=torch.int32, device=device)
    o = tilewise.attention(**case, seqused_kv=used)
    case["k"][0, 13:] = case["v"][0, 13:] = torch.nan
    assert torch.equal(o, tilewise.attention(**case, seqused_kv=used))


def test_dropout(device, torch_seed):
    case = qkv((2, 2, 2, 64, 64, 16, 16), torch.float16, device)
    with torch.no_grad():
        first, same, other = (tilewise.attention(**case, dropout_p=0.3, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)
    torch.manual_seed(5)
    drawn = tilewise.attention(**case, dropout_p=0.3)
    torch.manual_seed(5)
    assert torch.equal(drawn, tilewise.attention(**case, dropout_p=0.3))
    # With equal weights and V = 1, O's mean is that of 16,384 draws: 1, within 0.005 a standard
    # deviation, and the same in every run.
    equal, ones = torch.zeros_like(case["q"]), torch.ones_like(case["v"])
    kept = tilewise.attention(equal, case["k"], ones, dropout_p=0.3, seed=3)
    assert abs(kept.float().mean() - 1) < 0.02


@pytest.mark.parametrize("empty", ["batch", "heads", "seq_q", "seq_kv"])
def test_nothing_to_do(empty, device):
    b, s, h, sk = (0 if empty == n else 3 for n in ("batch", "seq_q", "heads", "seq_kv"))
    case = qkv((b, h, h, s, sk, 16, 16), torch.float16, device)
    o, lse = run(**case)
    assert o.shape == (b, s, h, 16) and (o == 0).all() and (lse == -torch.inf).all()
    grads = torch.autograd.grad(o.sum(), list(case.values()))
    assert all((g == 0).all() for g in grads)


def test_autocast(device, torch_seed):
    case = qkv((1, 2, 2, 20, 20, 16, 16), torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        o = tilewise.attention(**case, causal=True)
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert case["q"].grad.dtype == torch.float32


def test_checkpoint(device, torch_seed):
    from torch.utils.checkpoint import checkpoint

    case = qkv((1, 2, 2, 20, 20, 16, 16), torch.float16, device)
    q, k, v = case.values()

    def block(q, k, v):
        return tilewise.attention(q * 1, k, v, causal=True, dropout_p=0.2)

    results = []
    for wrapped in (block, lambda *a: checkpoint(block, *a, use_reentrant=False)):
        torch.manual_seed(3)
        o = wrapped(q, k, v)
        results.append((o, *torch.autograd.grad(o.float().square().sum(), (q, k, v))))
    same(device, *results)


def test_second_gradient_says_that_there_is_none(device, torch_seed):
    case = qkv((1, 1, 1, 4, 4, 8, 8), torch.float16, device)
    (g,) = torch.autograd.grad(tilewise.attention(**case).sum(), case["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        g.sum().backward()


def test_tensors_that_are_not_read_natively(device, torch_seed, monkeypatch):
    """Before PyTorch 2.10 tensors come as tuples."""
    classes = Torch.read_natively
    case = qkv((2, 4, 2, 20, 47, 64, 32), torch.float16, device)
    natively = run(**case, causal=True)
    try:
        assert not _native.use_exchange(object, object)
        monkeypatch.setattr(Torch, "read_natively", ())
        o, lse = run(**case, causal=True)
        assert torch.equal(o, natively[0]) and torch.equal(lse, natively[1])
        grads = torch.autograd.grad(o.sum(), list(case.values()))
    finally:
        assert _native.use_exchange(*classes) or not classes
    same(device, grads, torch.autograd.grad(natively[0].sum(), list(case.values())))


def test_parameters_subclasses_and_signs(device, torch_seed):
    q = torch.randn(1, 9, 2, 16, device=device, dtype=torch.float16)
    o = tilewise.attention(q, q, q)
    assert tilewise.attention(torch.nn.Parameter(q), q, q).requires_grad

    class Named(torch.Tensor):
        pass
    assert torch.equal(tilewise.attention(*[q.as_subclass(Named)] * 3).as_subclass(torch.Tensor), o)
    turned = torch._neg_view(q)  # a view whose numbers are stored with the other sign
    assert torch.equal(tilewise.attention(q, q, turned), -o)


def test_shapes_change_from_call_to_call(device, torch_seed):
    """A remembered plan is taken for its own shapes, dtypes and settings alone."""
    for _ in range(3):
        for dtype in dtypes(device):
            for shape in SHAPES[:3]:
                for mask in MASKS[:2]:
                    case = {n: t.detach() for n, t in qkv(shape, dtype, device).items()}
                    o = tilewise.attention(**case, **mask)
                    ref = standard(**case, **mask, dtype=torch.float64)[0]
                    assert o.dtype == dtype and (o - ref).abs().max() < 0.05
