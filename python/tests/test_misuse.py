"""Bad input: the usual Python exception with the library's message, and never a crash."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewise


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


Q = ones(2, 6, 4, 8)


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"q": ones(6, 4, 8)}, ValueError, "q has rank 3; accepted: rank 4"),
    ({"k": ones(2, 6, 4, 16)}, ValueError, "head_dim|k has shape"),
    ({"k": ones(2, 6, 3, 8)}, ValueError, "heads_kv is 3; accepted: a divisor of heads_q"),
    ({"v": ones(2, 5, 4, 8)}, ValueError, r"v has shape \(2, 5, 4, 8\); accepted: \(2, 6, 4, 8\)"),
    ({"v": ones(2, 6, 4, 8, dtype=np.float16)}, ValueError, "v is f16; accepted: f32"),
    ({"q": ones(2, 6, 4, 8, dtype=np.float64)}, TypeError, "q has dtype float64; accepted"),
    ({"q": ones(2, 6, 4, 8, dtype=">f4")}, TypeError, "q has dtype >f4"),
    ({"q": ones(2, 6, 4, 16)[..., ::2]}, ValueError, "q has stride 2 in its last dimension"),
    ({"q": [[1.0]]}, TypeError, "q is a list; accepted: an array"),
    ({"bias": ones(2, 4, 6)}, ValueError, "bias has rank 3"),
    ({"bias": ones(2, 4, 6, 6, dtype=bool)}, TypeError, "bias has dtype bool; .* bias of 0 and -inf"),
    ({"bias": ones(2, 4, 6, 5)}, ValueError, "bias has shape"),
    ({"sink": ones(3)}, ValueError, "sink has shape"),
    ({"sink": ones(4, dtype=np.float16)}, ValueError, "sink is f16; accepted: f32"),
    ({"alibi_slopes": ones(4, 2, 1)}, ValueError, "alibi_slopes has rank 3"),
    ({"seqused_kv": np.array([7, 1], np.int32)}, ValueError, "seqused_kv"),
    ({"seqused_kv": np.array([1, 1], np.int64)}, TypeError, "seqused_kv has dtype int64; accepted: int32"),
    ({"kernel": "fa9"}, ValueError, 'kernel is "fa9"; accepted on the CPU: auto'),
    ({"kernel": "fa2 x=1"}, ValueError, "kernel is"),
    ({"isa": "mmx"}, ValueError, 'isa is "mmx"'),
    ({"align": "left"}, ValueError, 'align is "left"; accepted: "bottom-right", "top-left"'),
    ({"window": 3}, ValueError, "window is 3; accepted"),
    ({"window": (-2, 1)}, ValueError, "mask.left is -2"),
    ({"scale": float("nan")}, ValueError, "scale is nan"),
    ({"softcap": -1.0}, ValueError, "softcap is -1"),
    ({"dropout_p": 1.0, "seed": 1}, ValueError, "dropout_p is 1"),
    ({"dropout_p": 0.1}, ValueError, "seed is None with dropout"),
    ({"tile_q": 7}, ValueError, "tile_q is 7"),
    ({"threads": -1}, ValueError, "threads is -1"),
    ({"causl": True}, TypeError, "causl"),
    ({"causal": "no"}, TypeError, "causal is 'no'; accepted: a bool"),
    ({"scale": "1"}, TypeError, "scale is a str; accepted: a number"),
    ({"softcap": None}, TypeError, "softcap is a NoneType; accepted: a number"),
    ({"threads": 1.5}, TypeError, "threads is a float; accepted: an int"),
    ({"window": (1.5, 0)}, TypeError, r"window\[0\] is a float"),
    ({"seed": "a", "dropout_p": 0.1}, TypeError, "seed is a str; accepted: an int"),
], ids=str)
def test_message(change, error, words):
    call = {"q": Q, "k": Q, "v": Q} | change
    with pytest.raises(error, match=words):
        tilewise.attention(**call)


def test_unknown_keywords_are_named():
    o, lse = tilewise.attention(Q, Q, Q, return_lse=True)
    with pytest.raises(TypeError, match=r"attention_backward\(\) got an unexpected .* 'causl'"):
        tilewise.attention_backward(o, Q, Q, Q, o, lse, causl=True)
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected .* 'causl'"):
        tilewise.plan(Q, Q, Q, causl=True)
    with pytest.raises(TypeError, match="seed is a float"):
        tilewise.attention_backward(o, Q, Q, Q, o, lse, dropout_p=0.1, seed=1.0)


@pytest.mark.parametrize(("cu", "words"), [
    ([1, 6], "cu_seqlens"), ([0, 7], "cu_seqlens"), ([0, 4, 2, 6], "cu_seqlens"), ([], "batch is -1")])
def test_lengths_that_lie(cu, words):
    q = ones(6, 4, 8)
    with pytest.raises(ValueError, match=words):
        tilewise.attention_varlen(q, q, q, np.array(cu, np.int32), np.array(cu, np.int32))


def test_torch_mixes():
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 4, 2, 8)
    with pytest.raises(TypeError, match="k is NumPy's and q is Torch's"):
        tilewise.attention(q, q.numpy(), q)
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient"):
        tilewise.attention(q, q, q, alibi_slopes=torch.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match="k is on meta and q is on cpu"):
        tilewise.attention(q, q.to("meta"), q)
    with pytest.raises(TypeError, match="dtype torch.float64"):
        tilewise.attention(q.double(), q.double(), q.double())
    with pytest.raises(TypeError, match="k has layout torch.sparse_coo"):
        tilewise.attention(q, q.to_sparse(), q)
    for _ in range(2):
        with pytest.raises(TypeError, match="seqused_kv has dtype torch.int64"):
            tilewise.attention(q, q, q, seqused_kv=torch.ones(1, dtype=torch.int64))
        with pytest.raises(TypeError, match="v has dtype torch.float64"):
            tilewise.attention(q, q, q.double())
        with pytest.raises(ValueError, match="sink has rank 5; accepted: at most 4"):
            tilewise.attention(q, q, q, sink=torch.ones(1, 1, 1, 1, 1))


def test_a_gpu_that_is_not_there():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("it is")
    from tilewise import _native
    plan = _native.make_plan("batch=1 heads_q=1 heads_kv=1 seq_q=4 seq_kv=4 head_dim=8 head_dim_v=8 "
                             "dtype=bf16 device=cuda:0")
    view = (4096, 2, 1, 0, (1, 4, 1, 8), (32, 8, 8, 1))
    elsewhere = (8192, *view[1:])
    with pytest.raises(RuntimeError, match="driver|CUDA"):
        plan.run_forward((view, view, view, *[None] * 7), (0, 0), (elsewhere, None), (0, 0, 0))
    with pytest.raises(NotImplementedError, match="needs f16 or bf16 inputs"):
        tilewise.plan((1, 4, 1, 8), (1, 4, 1, 8), (1, 4, 1, 8), device="cuda")


SIZES = st.integers(0, 5)
DTYPES = st.sampled_from([np.float32, np.float16, np.int32, np.float64])
REAL = st.floats(allow_nan=True, allow_infinity=True)
INTEGERS = st.integers(-3, 9) | st.integers(-2**70, 2**70)


@st.composite
def arrays(draw, rank=None):
    rank = draw(st.integers(0, 6)) if rank is None else rank
    shape = tuple(draw(SIZES) for _ in range(rank))
    array = np.random.default_rng(1).integers(-2, 9, shape).astype(draw(DTYPES))
    if rank and draw(st.booleans()):
        array = np.repeat(array, 2, draw(st.integers(0, rank - 1)))[..., ::draw(
            st.sampled_from([1, 2, -1]))]
    return array


ANY = st.none() | arrays() | REAL | st.text(max_size=3)
OPTIONS = {
    "causal": st.booleans(), "window": st.none() | st.tuples(INTEGERS, INTEGERS) | REAL,
    "scale": st.none() | REAL, "softcap": REAL, "align": st.text(max_size=9), "dropout_p": REAL,
    "seed": st.none() | INTEGERS, "kernel": st.sampled_from(["auto", "fa1", "fa2", "reference", "x"]),
    "threads": INTEGERS, "tile_q": INTEGERS, "tile_kv": INTEGERS, "bias": ANY | arrays(4),
    "sink": ANY | arrays(1), "alibi_slopes": ANY | arrays(1), "seqused_q": ANY | arrays(1),
    "seqused_kv": ANY | arrays(1), "return_lse": st.booleans(),
}
USUAL = (ValueError, TypeError, NotImplementedError, RuntimeError, OverflowError, MemoryError)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=arrays(4), same=st.booleans(), k=arrays(4) | ANY, v=arrays(4) | ANY,
       options=st.fixed_dictionaries({}, optional=OPTIONS))
def test_any_dense_call(q, same, k, v, options):
    try:
        tilewise.attention(q, q if same else k, q if same else v, **options)
    except USUAL as error:
        assert str(error)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=arrays(3), cu=st.lists(INTEGERS.filter(lambda n: abs(n) < 2**31), max_size=5),
       longest=st.none() | INTEGERS, k=arrays(3) | ANY, same=st.booleans(),
       options=st.fixed_dictionaries({}, optional=OPTIONS))
def test_any_packed_call(q, cu, longest, k, same, options):
    lengths = np.array(cu, np.int32)
    k = q if same else k
    try:
        tilewise.attention_varlen(q, k, k, lengths, lengths, max_seqlen_q=longest,
                                  max_seqlen_kv=longest, **options)
    except USUAL as error:
        assert str(error)


def as_torch(value, grad):
    """A NumPy array as a tensor that may want a gradient, anything else as it is."""
    torch = pytest.importorskip("torch")
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value.copy())
    if tensor.dim() > 1 and not value.flags.c_contiguous:
        tensor = tensor.transpose(0, 1)
    return tensor.requires_grad_(grad and tensor.is_floating_point())


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=arrays(4), kv=st.none() | st.tuples(arrays(4) | ANY, arrays(4) | ANY), grad=st.booleans(),
       backward=st.booleans(), options=st.fixed_dictionaries({}, optional=OPTIONS))
def test_any_torch_call(q, kv, grad, backward, options):
    q = as_torch(q, grad)
    k, v = (q, q) if kv is None else (as_torch(x, grad) for x in kv)
    options = {n: as_torch(x, grad) for n, x in options.items()}
    try:
        for _ in range(2):  # the second time by the plan that is remembered
            out = tilewise.attention(q, k, v, **options)
            out = sum(t[t.isfinite()].sum() for t in out) if isinstance(out, tuple) else out.sum()
            if backward:
                out.backward()
    except USUAL as error:
        assert str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=arrays(4), o=arrays(4) | ANY, lse=arrays(3) | ANY, d_o=arrays(4) | ANY, like=st.booleans(),
       options=st.fixed_dictionaries({}, optional=OPTIONS | {"d_lse": ANY | arrays(3)}))
def test_any_backward_call(q, o, lse, d_o, like, options):
    if like:
        o, d_o = q, q
        lse = np.zeros((q.shape[0], q.shape[2], q.shape[1]), np.float32)
    try:
        tilewise.attention_backward(d_o, q, q, q, o, lse, **options)
    except USUAL as error:
        assert str(error)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(o1=arrays(4) | ANY, lse1=arrays(3) | ANY, o2=arrays(4) | ANY, lse2=arrays(3) | ANY)
def test_any_merge(o1, lse1, o2, lse2):
    try:
        tilewise.merge(o1, lse1, o2, lse2)
    except USUAL as error:
        assert str(error)


SHAPE = st.lists(INTEGERS, max_size=5).map(tuple) | ANY


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=SHAPE, kv=st.none() | st.tuples(SHAPE, SHAPE),
       dtype=st.sampled_from(["float32", "bf16", "int8", None, 3]),
       device=st.sampled_from([None, "cpu", "cuda", "cuda:1", "cuda:x", "tpu", 7]),
       options=st.fixed_dictionaries({}, optional=OPTIONS))
def test_any_plan(q, kv, dtype, device, options):
    try:
        str(tilewise.plan(q, *(kv or (q, q)), dtype=dtype, device=device, **options))
    except USUAL as error:
        assert str(error)


JUNK = st.recursive(st.none() | INTEGERS | st.text(max_size=2) | REAL,
                    lambda inner: st.lists(inner, max_size=12).map(tuple), max_leaves=30)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(a=JUNK, b=JUNK, c=JUNK, d=JUNK, spec=st.text(max_size=20))
def test_native_calls_with_anything(a, b, c, d, spec):
    """What isn't a tuple of what it should be is refused; addresses are believed, so none is made up."""
    from tilewise import _native

    plan = _native.make_plan("batch=0 heads_q=1 heads_kv=1 seq_q=1 seq_kv=1 head_dim=8 head_dim_v=8")
    for call in (lambda: plan.run_forward(a, b, c, d), lambda: plan.run_backward(a, b, c, d),
                 lambda: _native.find_seen(a, b), lambda: _native.remember_seen(a, b, c),
                 lambda: _native.make_plan(spec)):
        try:
            call()
        except USUAL as error:
            assert str(error)
