"""What the compiler sees: opcheck, torch.compile without graph breaks, export, CUDA graphs, DDP."""
import subprocess
import sys

import pytest
import torch
from oracle import same

import tilewise
import tilewise.torch  # the operators
from tilewise._call import NAMES, Settings

OPTIONS = [{}, {"causal": True, "window": (5, -1)}, {"bias": True, "sink": True}, {"packed": True},
           {"dropout_p": 0.25}]


def made(*shape, device, wanted=True):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=wanted)


def case_of(options, device):
    """(operands by name, keyword arguments)"""
    rest = dict(options)
    packed = rest.pop("packed", False)
    shape = (30, 4, 16) if packed else (2, 30, 4, 16)
    tensors = {n: made(*shape, device=device) for n in "qkv"}
    if packed:
        cu = torch.tensor([0, 10, 10, 30], dtype=torch.int32, device=device)
        tensors |= {"cu_seqlens_q": cu, "cu_seqlens_kv": cu}
        rest |= {"max_seqlen_q": 20, "max_seqlen_kv": 20}
    if rest.pop("bias", False):
        tensors["bias"] = made(1, 4, 30, 30, device=device)
    if rest.pop("sink", False):
        tensors["sink"] = torch.randn(4, device=device, requires_grad=True)
    return tensors, rest


def call(tensors, rest):
    packed = "cu_seqlens_q" in tensors
    function = tilewise.attention_varlen if packed else tilewise.attention
    return function(**tensors, **rest, seed=3 if rest.get("dropout_p") else None, return_lse=True)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_opcheck(options, device, torch_seed):
    tensors, rest = case_of(options, device)
    window = rest.pop("window", (-1, -1))
    settings = Settings(**rest, left=window[0], right=window[1])
    operands = [tensors.get(n) for n in NAMES]
    torch.library.opcheck(torch.ops.tilewise.forward.default, (*operands, 7, *settings))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_is_eager(options, device, torch_seed):
    tensors, rest = case_of(options, device)
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    wanted = [t for t in tensors.values() if t.requires_grad]
    results = []
    for run in (compiled, call):
        o, lse = run(tensors, rest)
        grads = torch.autograd.grad(o.float().square().sum() + lse.sum(), wanted)
        results.append((o, lse, *grads))
    same(device, *results)


class Block(torch.nn.Module):
    """A layer with projections around the attention, so that there is something to fuse."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return x + self.out(tilewise.attention(q, k, v, causal=True).flatten(-2))


def block(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return Block(32, 4).to(device, dtype), made(2, 24, 32, device=device)


def test_inductor(device, torch_seed):
    layer, x = block(device)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True)
    for y in (x, made(2, 24, 32, device=device)):
        mine, eager = compiled(y), layer(y)
        torch.testing.assert_close(mine, eager)
        a, b = (torch.autograd.grad(o.float().square().sum(), layer.qkv.weight)[0]
                for o in (mine, eager))
        torch.testing.assert_close(a, b, rtol=2e-2 if device == "cuda" else 1e-4,
                                   atol=1e-1 if device == "cuda" else 1e-4)


def test_dynamic_lengths_share_one_graph(device, torch_seed):
    layer, _ = block(device)
    torch.compiler.reset()
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for length in (24, 31, 57):
        x = made(2, length, 32, device=device, wanted=False)
        torch.testing.assert_close(compiled(x), layer(x))
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]


def test_export(device, torch_seed):
    layer, x = block(device)
    x = x.detach()
    program = torch.export.export(layer, (x,))
    assert any("tilewise.forward" in str(n.target) for n in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), layer(x))


def test_an_exported_program_in_a_process_of_its_own(tmp_path, torch_seed):
    x = made(2, 24, 32, device="cpu", wanted=False)
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(block("cpu")[0], (x,)), path)
    code = ("import tilewise, tilewise.torch, torch\n"
            f"program = torch.export.load({str(path)!r})\n"
            "print(tuple(program.module()(torch.randn(2, 24, 32)).shape))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2, 24, 32)", done.stderr


def test_fake_tensors_have_the_shapes(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, v = torch.empty(2, 7, 4, 16, device=device), torch.empty(2, 7, 4, 24, device=device)
        o, lse = tilewise.attention(q, q, v, return_lse=True)
    assert o.shape == (2, 7, 4, 24) and lse.shape == (2, 4, 7) and lse.dtype == torch.float32
    assert tilewise.attention(*(torch.empty(2, 7, 4, 16, device="meta") for _ in "qkv")).is_meta


def test_torch_func(device, torch_seed):
    q, k, v, g = (made(2, 9, 4, 16, device=device, wanted=False) for _ in "qkvg")
    bias = torch.randn(1, 4, 9, 9, device=device)

    def loss(q, k, bias):
        return (tilewise.attention(q, k, v, causal=True, bias=bias) * g).float().sum()

    leaves = [t.clone().requires_grad_() for t in (q, k, bias)]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    same(device, torch.func.grad(loss, argnums=(0, 1, 2))(q, k, bias), expected)
    many = torch.stack([q, 2 * q, -q])
    mapped = torch.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, k, bias)
    same(device, mapped, [torch.func.grad(loss)(x, k, bias) for x in many])
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x, k, bias).sum())(q)


def test_operators_have_no_second_derivative(device, torch_seed):
    tensors, rest = case_of({}, device)
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    (g,) = torch.autograd.grad(compiled(tensors, rest)[0].sum(), tensors["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        g.sum().backward()


def test_cuda_graph(device, torch_seed):
    if device != "cuda":
        pytest.skip("needs a GPU")
    q, k, v = (made(2, 100, 4, 64, device=device, wanted=False) for _ in "qkv")
    expected = tilewise.attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = tilewise.attention(q, k, v, causal=True)
    o.fill_(torch.nan)
    graph.replay()
    assert torch.equal(o, expected)
    for t in (q, k, v):
        t.copy_(torch.randn_like(t))
    graph.replay()
    assert torch.equal(o, tilewise.attention(q, k, v, causal=True))


def test_cuda_graph_of_a_training_step(device, torch_seed):
    if device != "cuda":
        pytest.skip("needs a GPU")
    layer, x = block(device)
    sample = made(2, 24, 32, device=device)
    eager = torch.autograd.grad(layer(x).float().square().sum(), (x, layer.qkv.weight))
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    for _ in range(2):
        grads = torch.autograd.grad(graphed(x).float().square().sum(), (x, layer.qkv.weight))
        for a, b in zip(grads, eager):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-1)


def test_the_current_stream_is_worked_on(device, torch_seed):
    """Inputs that are still being made on a side stream, outputs that are read there."""
    if device != "cuda":
        pytest.skip("needs a GPU")
    x = torch.randn(1, 2048, 8, 64, device=device, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    tilewise.attention(x, x, x)
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(stream):
            y = x.float()
            for _ in range(60):
                y = torch.sin(y) * 1.5
            y = y.bfloat16()
            total = tilewise.attention(y, y, y).float().sum(0)
        stream.synchronize()
        again = tilewise.attention(y, y, y).float().sum(0)
        assert torch.equal(total, again)


def test_distributed_data_parallel(device, torch_seed, tmp_path):
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    layer, x = block(device)
    (layer(x).float().square().sum()).backward()
    expected = layer.qkv.weight.grad.clone()
    layer.zero_grad()
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(layer)
        parallel(x).float().square().sum().backward()
        torch.testing.assert_close(layer.qkv.weight.grad, expected)
    finally:
        dist.destroy_process_group()
