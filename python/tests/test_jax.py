"""JAX arrays: values and gradients, traced or not, against plain jax.numpy."""
import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import tilewise  # noqa: E402


@pytest.fixture(autouse=True)
def platform(device):
    try:
        (chosen, *_) = jax.devices("gpu" if device == "cuda" else "cpu")
    except RuntimeError:
        pytest.skip("this JAX has no such device")
    with jax.default_device(chosen):
        yield


def dtypes(device):
    return (jnp.float16, jnp.bfloat16) if device == "cuda" else (jnp.float32, jnp.float16, jnp.bfloat16)


def standard(q, k, v, bias=None, sink=None, causal=False):
    q, k, v = (t.astype(jnp.float32) for t in (q, k, v))
    k, v = (jnp.repeat(t, q.shape[2] // t.shape[2], 2) for t in (k, v))
    s = jnp.einsum("bihd,bjhd->bhij", q, k, precision="highest") / np.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[2:]), s.shape[3] - s.shape[2]) > 0, s, -jnp.inf)
    columns = s
    if sink is not None:
        columns = jnp.concatenate([s, jnp.broadcast_to(sink[:, None, None], (*s.shape[:3], 1))], -1)
    lse = jax.scipy.special.logsumexp(columns, -1)
    o = jnp.einsum("bhij,bjhd->bihd", jnp.exp(s - lse[..., None]), v, precision="highest")
    return o, lse


def made(rng, *shape, dtype=np.float32):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def case(rng, dtype):
    return [made(rng, 2, 20, 4, 32, dtype=dtype), *(made(rng, 2, 27, 2, 32, dtype=dtype) for _ in "kv"),
            made(rng, 1, 4, 20, 27), made(rng, 4)]


def mine(q, k, v, bias, sink):
    return tilewise.attention(q, k, v, bias=bias, sink=sink, causal=True, return_lse=True)


def loss(function, *arrays):
    o, lse = function(*arrays)
    return jnp.sin(o.astype(jnp.float32)).sum() + jnp.cos(lse).sum()


TOLERANCE = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}


@pytest.mark.parametrize("jit", [False, True])
def test_values_and_gradients(jit, device, rng):
    for dtype in dtypes(device):
        arrays = case(rng, dtype)
        wrap = jax.jit if jit else lambda f: f
        limit = TOLERANCE[jnp.dtype(dtype).name]
        for a, b in zip(wrap(mine)(*arrays), standard(*arrays, causal=True)):
            assert abs(a.astype(jnp.float32) - b).max() < limit
        grad = jax.grad(functools.partial(loss, mine), argnums=tuple(range(5)))
        expected = jax.grad(functools.partial(loss, functools.partial(standard, causal=True)),
                            argnums=tuple(range(5)))(*arrays)
        for a, b in zip(wrap(grad)(*arrays), expected):
            assert a.dtype == b.dtype
            assert abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max() < limit


def test_packed(device, rng):
    dtype = dtypes(device)[0]
    q, k, v = (made(rng, 12, 2, 16, dtype=dtype) for _ in "qkv")
    cu = jnp.array([0, 5, 12], jnp.int32)

    @jax.jit
    def packed(q, k, v, cu):
        return tilewise.attention_varlen(q, k, v, cu, cu, causal=True)

    o = packed(q, k, v, cu)
    for a, b in ((0, 5), (5, 12)):
        part = tilewise.attention(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)[0]
        assert (o[a:b] == part).all()
    grad = jax.grad(lambda q: packed(q, k, v, cu).astype(jnp.float32).sum())(q)
    assert jnp.isfinite(grad).all()


def test_vmap_and_scan(device, rng):
    dtype = dtypes(device)[0]
    q = made(rng, 3, 1, 8, 2, 16, dtype=dtype)
    mapped = jax.vmap(lambda x: tilewise.attention(x, x, x))(q)
    looped = jax.lax.map(lambda x: tilewise.attention(x, x, x), q)
    alone = jnp.stack([tilewise.attention(x, x, x) for x in q])
    assert (mapped == alone).all() and (looped == alone).all()


def test_merge_is_differentiable(device, rng):
    dtype = dtypes(device)[0]
    q, k, v = (made(rng, 1, 9, 2, 16, dtype=dtype) for _ in "qkv")

    def halves(q, k, v):
        parts = [tilewise.attention(q, k[:, s], v[:, s], return_lse=True)
                 for s in (slice(0, 4), slice(4, 9))]
        return tilewise.merge(*parts[0], *parts[1])[0].astype(jnp.float32)

    whole = functools.partial(lambda *a: tilewise.attention(*a).astype(jnp.float32))
    limit = TOLERANCE[jnp.dtype(dtype).name]
    assert abs(halves(q, k, v) - whole(q, k, v)).max() < limit
    a, b = (jax.grad(lambda k: jnp.sin(f(q, k, v)).sum())(k) for f in (halves, whole))
    assert abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max() < limit


def test_dropout_wants_a_seed(device, rng):
    q = made(rng, 1, 8, 2, 16, dtype=dtypes(device)[0])
    with pytest.raises(ValueError, match="seed is None"):
        tilewise.attention(q, q, q, dropout_p=0.1)
    a, b = (tilewise.attention(q, q, q, dropout_p=0.5, seed=s) for s in (1, 1))
    assert (a == b).all()


def test_misuse(device, rng):
    q = made(rng, 1, 8, 2, 16, dtype=dtypes(device)[0])
    with pytest.raises(ValueError, match="q has rank 3"):
        tilewise.attention(q[0], q, q)
    with pytest.raises(TypeError, match="k is a ndarray"):
        tilewise.attention(q, np.asarray(q), q)
    with pytest.raises(Exception, match=r"v has shape \(1, 7, 2, 16\); accepted: \(1, 8, 2, 16\)"):
        jax.block_until_ready(tilewise.attention(q, q, q[:, :7]))
    slopes = jnp.ones(2)
    with pytest.raises(NotImplementedError, match="alibi_slopes is differentiated"):
        jax.grad(lambda s: tilewise.attention(q, q, q, alibi_slopes=s).astype(jnp.float32).sum())(slopes)
    assert jnp.isfinite(jax.grad(lambda x: tilewise.attention(
        x, q, q, alibi_slopes=slopes).astype(jnp.float32).sum())(q)).all()
