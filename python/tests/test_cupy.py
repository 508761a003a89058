"""CuPy's arrays on a GPU, against the same call on NumPy's."""
import numpy as np
import pytest

import tilewise

cupy = pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device != "cuda":
        pytest.skip("CuPy's arrays are on GPUs")


def made(rng, *shape):
    host = rng.standard_normal(shape).astype(np.float16)
    return host, cupy.asarray(host)


def close(gpu, host, bound=2e-3):
    assert isinstance(gpu, cupy.ndarray) and gpu.dtype == host.dtype
    np.testing.assert_allclose(gpu.get().astype(np.float32), host.astype(np.float32), rtol=bound,
                               atol=bound)


def test_forward_and_backward_are_numpys(rng):
    (q, gq), (k, gk), (v, gv), (g, gg) = (
        made(rng, 2, s, h, 64) for s, h in ((40, 4), (50, 2), (50, 2), (40, 4)))
    host = tilewise.attention(q, k, v, causal=True, return_lse=True)
    gpu = tilewise.attention(gq, gk, gv, causal=True, return_lse=True)
    close(gpu[0], host[0])
    close(gpu[1], host[1])
    theirs = tilewise.attention_backward(g, q, k, v, *host, causal=True)
    mine = tilewise.attention_backward(gg, gq, gk, gv, *gpu, causal=True)
    for a, b in zip(mine[:3], theirs[:3]):
        close(a, b, 1e-2)


def test_packed_and_bias(rng):
    (q, gq), (k, gk), (v, gv) = (made(rng, 60, 2, 64) for _ in "qkv")
    cu = np.array([0, 20, 20, 60], np.int32)
    host = tilewise.attention_varlen(q, k, v, cu, cu, max_seqlen_q=40, max_seqlen_kv=40)
    gpu = tilewise.attention_varlen(gq, gk, gv, *[cupy.asarray(cu)] * 2, max_seqlen_q=40,
                                    max_seqlen_kv=40)
    close(gpu, host)
    bias = rng.standard_normal((1, 2, 60, 60)).astype(np.float32)
    close(tilewise.attention(gq[None], gk[None], gv[None], bias=cupy.asarray(bias)),
          tilewise.attention(q[None], k[None], v[None], bias=bias))


def test_slices_are_read_in_place(rng):
    packed, gpu = made(rng, 2, 40, 3, 4, 64)
    close(tilewise.attention(*(gpu[:, :, i] for i in range(3))),
          tilewise.attention(*(packed[:, :, i] for i in range(3))))


def test_on_the_current_stream(rng):
    """Work queued behind the inputs' own kernels, on a stream that waits for no other."""
    host, gpu = made(rng, 1, 2048, 4, 64)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        x = gpu
        for _ in range(50):
            x = cupy.tanh(x)
        o = tilewise.attention(x, x, x)
    stream.synchronize()
    x = x.get()
    close(o, tilewise.attention(x, x, x), 4e-3)


def test_merge(rng):
    _, gq = made(rng, 1, 20, 2, 64)
    whole = tilewise.attention(gq, gq, gq, return_lse=True)
    parts = [tilewise.attention(gq, gq[:, s], gq[:, s], return_lse=True)
             for s in (slice(0, 9), slice(9, None))]
    for a, b in zip(tilewise.merge(*parts[0], *parts[1]), whole):
        close(a, b.get(), 4e-3)


def test_what_does_not_belong_together(rng):
    host, gpu = made(rng, 1, 8, 2, 64)
    with pytest.raises(TypeError, match="k is NumPy's and q is CuPy's"):
        tilewise.attention(gpu, host, gpu)
    with pytest.raises(NotImplementedError, match="needs f16 or bf16"):
        tilewise.attention(*[gpu.astype(np.float32)] * 3)
    assert tilewise.plan(gpu, gpu, gpu).forward["kernel"] == "fa3"
