"""NumPy arrays, and what needs no automatic differentiation: merge, plan, the backward by hand."""
import numpy as np
import pytest

import tilewise


def standard(q, k, v, causal=False):
    """(O, LSE) in float64."""
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    if causal:
        i, j = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])[None, :]
        s = np.where(j <= i + s.shape[3] - s.shape[2], s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-1e300)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    o = np.einsum("bhij,bjhd->bihd", e / np.where(total > 0, total, 1), v)
    with np.errstate(divide="ignore"):
        return o, np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]


def made(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_against_float64(dtype, rng):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = made(rng, 2, 20, 4, 32, dtype=dtype), *(made(rng, 2, 33, 4, 32, dtype=dtype) for _ in "kv")
    o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
    ref, ref_lse = standard(q, k, v, causal=True)
    assert o.dtype == q.dtype and lse.dtype == np.float32
    bound = {4: 1e-5, 2: 1e-3 if o.dtype == np.float16 else 1e-2}[o.itemsize]
    assert abs(o.astype(np.float64) - ref).max() < bound and abs(lse - ref_lse).max() < 1e-4


def test_no_copy_of_strided_views(rng):
    packed = made(rng, 2, 3, 15, 4, 8)
    q, k, v = (packed[:, i] for i in range(3))
    np.testing.assert_array_equal(tilewise.attention(q, k, v),
                                  tilewise.attention(*(np.ascontiguousarray(t) for t in (q, k, v))))
    backwards = q[:, ::-1]
    np.testing.assert_array_equal(tilewise.attention(backwards, k, v),
                                  tilewise.attention(q, k, v)[:, ::-1])


def test_backward_against_differences(rng):
    q, k, v = (made(rng, 1, 5, 2, 4) for _ in "qkv")
    bias, sink, g = made(rng, 1, 2, 5, 5), made(rng, 2), made(rng, 1, 5, 2, 4)
    terms = {"bias": bias, "sink": sink, "causal": True, "kernel": "reference"}
    o, lse = tilewise.attention(q, k, v, **terms, return_lse=True)
    grads = tilewise.attention_backward(g, q, k, v, o, lse, **terms)
    for name, array in (("dq", q), ("dk", k), ("dv", v), ("dbias", bias), ("dsink", sink)):
        place = tuple(rng.integers(n) for n in array.shape)
        sides = []
        for step in (1e-2, -1e-2):
            array[place] += np.float32(step)
            sides.append((tilewise.attention(q, k, v, **terms).astype(np.float64) * g).sum())
            array[place] -= np.float32(step)
        assert abs((sides[0] - sides[1]) / 2e-2 - getattr(grads, name)[place]) < 2e-3, name


def test_merge_of_halves(rng):
    q, k, v = (made(rng, 2, 21, 3, 16) for _ in "qkv")
    whole, whole_lse = tilewise.attention(q, k, v, return_lse=True)
    parts = [tilewise.attention(q, k[:, s], v[:, s], return_lse=True)
             for s in (slice(0, 9), slice(9, None))]
    o, lse = tilewise.merge(*parts[0], *parts[1])
    np.testing.assert_allclose(o, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=2e-6)


def test_merge_with_nothing(rng):
    q, k, v = (made(rng, 1, 4, 2, 8) for _ in "qkv")
    some = tilewise.attention(q, k, v, return_lse=True)
    none = tilewise.attention(q, k[:, :0], v[:, :0], return_lse=True)
    for parts in ((some, none), (none, some)):
        o, lse = tilewise.merge(*parts[0], *parts[1])
        np.testing.assert_allclose(o, some[0], rtol=1e-6)
        np.testing.assert_allclose(lse, some[1], rtol=1e-6)
    o, lse = tilewise.merge(*none, *none)
    assert (o == 0).all() and (lse == -np.inf).all()


def test_merge_is_differentiable():
    torch = pytest.importorskip("torch")
    o = [torch.randn(1, 4, 2, 8, requires_grad=True) for _ in range(2)]
    lse = [torch.randn(1, 2, 4).index_fill(2, torch.tensor([i]), -torch.inf).requires_grad_()
           for i in (0, 0)]
    merged, joint = tilewise.merge(o[0], lse[0], o[1], lse[1])
    (merged.sum() + joint[..., 1:].sum()).backward()
    assert all(t.grad.isfinite().all() for t in (*o, *lse))


def test_packed(rng):
    q, k, v = (made(rng, 12, 2, 8) for _ in "qkv")
    cu = np.array([0, 5, 5, 12], np.int32)
    o = tilewise.attention_varlen(q, k, v, cu, cu, causal=True)
    for a, b in ((0, 5), (5, 12)):
        part = tilewise.attention(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)[0]
        np.testing.assert_array_equal(o[a:b], part)


def test_plan_says_what_and_why():
    plan = tilewise.plan((1, 4096, 8, 64), (1, 4096, 2, 64), (1, 4096, 2, 64), dtype="bf16", causal=True)
    assert plan.forward["kernel"] == "fa2" and "passed over fa1" in str(plan)
    assert plan.forward["fa2_bytes"] < plan.forward["standard_bytes"]
    gpu = tilewise.plan((1, 128, 8, 64), (1, 128, 8, 64), (1, 128, 8, 64), dtype="bfloat16",
                        device="cuda")
    assert gpu.forward["kernel"] in tilewise.kernels("cuda")
    assert "fa2" in tilewise.kernels() and "scalar" in tilewise.isas()


def test_other_arrays_come_by_dlpack(rng):
    class Foreign:
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    q, k, v = (made(rng, 1, 4, 2, 8) for _ in "qkv")
    np.testing.assert_array_equal(tilewise.attention(*map(Foreign, (q, k, v))),
                                  tilewise.attention(q, k, v))


def test_threads_change_nothing(rng):
    q, k, v = (made(rng, 1, 100, 3, 16) for _ in "qkv")
    one, two = (tilewise.attention(q, k, v, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one, two)
