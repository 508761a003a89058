"""The drop-in: flash_attn's and flash_attn_interface's functions by their own signatures."""
import functools
import inspect
import itertools

import flash_attn
import flash_attn_interface as fa3
import pytest
import torch
from flash_attn import bert_padding
from flash_attn.layers.rotary import apply_rotary_emb
from oracle import attention as standard
from oracle import hold, redraw


def dtypes(device):
    return (torch.float16, torch.bfloat16) if device == "cuda" else (
        torch.float32, torch.float16, torch.bfloat16)


def made(*shape, dtype, device):
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


def held_to_float64(run, wanted, split, terms, dtype):
    """run(*wanted) and its gradients against the oracle on split(*wanted) = (q, k, v)."""
    def draw():
        redraw(wanted)
        out = run(*wanted)
        outs = [out, *(standard(*split(*wanted), dtype=kind, from_rounded=rounded, **terms)[0]
                       for kind, rounded in ((torch.float64, False), (dtype, False), (dtype, True)))]
        d_o = torch.randn_like(out)
        grads = [torch.autograd.grad(o, wanted, d_o.to(o.dtype), retain_graph=True) for o in outs]
        return [("out", *outs), *((f"d{i}", *g) for i, g in enumerate(zip(*grads)))]
    hold(draw, dtype)


def separate(*tensors):
    return tensors


TERMS = [({}, {}), ({"causal": True}, {"causal": True}),
         ({"window_size": (4, 0), "softcap": 9.0}, {"window": (4, 0), "softcap": 9.0}),
         ({"softmax_scale": 0.2, "causal": True}, {"scale": 0.2, "causal": True})]


@pytest.mark.parametrize(("theirs", "terms"), TERMS, ids=str)
def test_dense_forms(theirs, terms, device, torch_seed):
    for dtype in dtypes(device):
        q, k, v = (made(2, s, h, 40, dtype=dtype, device=device) for s, h in ((19, 4), (33, 2), (33, 2)))
        kv = made(2, 33, 2, 2, 40, dtype=dtype, device=device)
        qkv = made(2, 19, 3, 4, 40, dtype=dtype, device=device)
        for function, wanted, split in (
                (flash_attn.flash_attn_func, (q, k, v), separate),
                (fa3.flash_attn_func, (q, k, v), separate),
                (flash_attn.flash_attn_kvpacked_func, (q, kv), lambda q, kv: (q, *kv.unbind(2))),
                (flash_attn.flash_attn_qkvpacked_func, (qkv,), lambda qkv: qkv.unbind(2))):
            held_to_float64(functools.partial(function, **theirs), wanted, split, terms, dtype)


def test_alibi(device, torch_seed):
    q, k, v = (made(2, 19, 4, 32, dtype=torch.float16, device=device) for _ in "qkv")
    slopes = torch.rand(2, 4, device=device) / 4
    run = functools.partial(flash_attn.flash_attn_func, causal=True, alibi_slopes=slopes)
    held_to_float64(run, (q, k, v), separate, {"causal": True, "alibi_slopes": slopes}, torch.float16)


def test_varlen_forms_through_padding(device, torch_seed):
    dtype = torch.float16
    lengths = torch.tensor([7, 0, 19, 12], device=device)
    mask = torch.arange(19, device=device) < lengths[:, None]
    padded = made(4, 19, 3, 4, 32, dtype=dtype, device=device)
    qkv, indices, cu, longest, used = bert_padding.unpad_input(padded, mask)
    assert cu.tolist() == [0, 7, 7, 26, 38] and longest == 19 and used.tolist() == lengths.tolist()
    q, k, v = qkv.unbind(1)
    outs = [flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, longest, causal=True),
            flash_attn.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu, cu, longest, longest,
                                                       causal=True),
            flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, longest, longest, causal=True),
            fa3.flash_attn_varlen_func(q, k, v, cu, cu, longest, longest, causal=True)]
    assert all(torch.equal(outs[0], o) for o in outs[1:])
    back = bert_padding.pad_input(outs[0], indices, 4, 19)
    assert back.shape == (4, 19, 4, 32)
    for b, n in enumerate(lengths.tolist()):
        assert (back[b, n:] == 0).all()
        if n:
            one = flash_attn.flash_attn_func(*(t[None] for t in padded[b, :n].unbind(1)), causal=True)
            torch.testing.assert_close(back[b, :n], one[0])
    back.sum().backward()
    assert padded.grad is not None and (padded.grad[~mask] == 0).all()


def test_concatenated_samples(device):
    x = torch.arange(12, device=device).view(2, 6, 1)
    in_length = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]], device=device)
    rows, indices, cu, longest = bert_padding.unpad_input_for_concatenated_sequences(x, in_length)
    assert rows.flatten().tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert cu.tolist() == [0, 2, 5, 11] and longest == 6 and indices.tolist() == rows.flatten().tolist()


def test_return_values(device, torch_seed):
    dtype = torch.float16
    q, k, v = (made(2, 20, 4, 32, dtype=dtype, device=device) for _ in "qkv")
    out, lse, nothing = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == q.shape and lse.shape == (2, 4, 20) and lse.dtype == torch.float32
    assert nothing.numel() == 0
    out, lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True)
    torch.testing.assert_close(lse.double(), standard(q, k, v, torch.float64)[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("packed", [False, True])
def test_probabilities_with_dropout(packed, device, torch_seed):
    q, k, v = (made(2, 20, 4, 32, dtype=torch.float16, device=device).detach() for _ in "qkv")
    if packed:
        cu = torch.tensor([0, 20, 40], dtype=torch.int32, device=device)
        flat = [t.flatten(0, 1) for t in (q, k, v)]
        out, _, p = flash_attn.flash_attn_varlen_func(*flat, cu, cu, 20, 20, 0.4, return_attn_probs=True)
        out = out.view(2, 20, 4, 32)
    else:
        out, _, p = flash_attn.flash_attn_func(q, k, v, 0.4, return_attn_probs=True)
    assert p.shape == (2, 4, 128, 128)
    p = p[:, :, :20, :20].float()
    assert abs((p < 0).float().mean() - 0.4) < 0.08
    torch.testing.assert_close(p.abs().sum(-1), torch.ones(2, 4, 20, device=device), atol=1e-2, rtol=0)
    again = torch.einsum("bhij,bjhd->bihd", p.clamp_min(0) / 0.6, v.float())
    torch.testing.assert_close(out.float(), again, atol=2e-2, rtol=2e-2)


def test_combine(device, torch_seed):
    q, k, v = (torch.randn(2, 20, 4, 32, device=device) for _ in "qkv")
    parts = [standard(q, k[:, s], v[:, s], torch.float32) for s in (slice(0, 7), slice(7, 20))]
    out, lse = fa3.flash_attn_combine(torch.stack([o for o, _ in parts]),
                                      torch.stack([x.transpose(1, 2) for _, x in parts]))
    whole, whole_lse = standard(q, k, v, torch.float32)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(lse, whole_lse.transpose(1, 2))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved, device, torch_seed):
    x = torch.randn(2, 9, 3, 16, device=device, requires_grad=True)
    angles = torch.rand(20, 4, device=device) * 3
    out = apply_rotary_emb(x, angles.cos(), angles.sin(), interleaved, seqlen_offsets=2)
    pairs = x[..., :8].unflatten(-1, (4, 2) if interleaved else (2, 4))
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.polar(torch.ones_like(angles), angles)[2:11, None] * torch.complex(a, b)
    expected = torch.stack([turned.real, turned.imag], -1 if interleaved else -2).flatten(-2)
    torch.testing.assert_close(out[..., :8], expected)
    assert torch.equal(out[..., 8:], x[..., 8:])
    packed = torch.cat([x[0, :5], x[1]]).detach()
    cu = torch.tensor([0, 5, 14], dtype=torch.int32, device=device)
    flat = apply_rotary_emb(packed, angles.cos(), angles.sin(), interleaved,
                            seqlen_offsets=torch.tensor([2, 2], device=device), cu_seqlens=cu,
                            max_seqlen=9)
    torch.testing.assert_close(flat, torch.cat([out[0, :5], out[1]]).detach())
    same = x.detach().clone()
    assert apply_rotary_emb(same, angles.cos(), angles.sin(), interleaved, True, 2) is same
    torch.testing.assert_close(same, out.detach())
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_errors_in_its_words(device):
    q = torch.randn(1, 4, 4, 32, device=device, dtype=torch.float16)
    for k, words in ((q.float(), "query and key must have the same dtype"),
                     (q[:, :, :3], "Number of heads in key/value must divide"),
                     (q[..., :16], "k has shape")):
        with pytest.raises(RuntimeError, match=words):
            flash_attn.flash_attn_func(q, k, q)
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        flash_attn.flash_attn_func(q.double(), q.double(), q.double())
    for module in (flash_attn, fa3):
        with pytest.raises(NotImplementedError, match="decode"):
            module.flash_attn_with_kvcache(q, q, q)
    with pytest.raises(NotImplementedError, match="block_table"):
        flash_attn.flash_attn_varlen_func(q, q, q, q, q, 1, 1, block_table=q)


def test_signatures():
    common = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes",
              "deterministic", "return_attn_probs"]
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    forms = {"": ["q", "k", "v"], "kvpacked_": ["q", "kv"], "qkvpacked_": ["qkv"]}
    for (form, first), packed in itertools.product(forms.items(), (False, True)):
        name = "flash_attn_" + ("varlen_" if packed else "") + form + "func"
        between = [] if not packed else (["cu_seqlens", "max_seqlen"] if form == "qkvpacked_" else lengths)
        expected = first + between + common + (["block_table"] if packed and not form else [])
        assert list(inspect.signature(getattr(flash_attn, name)).parameters) == expected
