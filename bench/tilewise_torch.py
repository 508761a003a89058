"""tilewise's C API on PyTorch CUDA tensors, by ctypes: for the GPU tests and benchmarks, which need
PyTorch for its random numbers, its float64 and its peers. The Python package is another thing."""
import ctypes as c

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3}
CUDA = 1


def struct(name, fields):
    """A ctypes struct that begins with its size, as all of the C API's do."""
    return type(name, (c.Structure,), {"_fields_": [("struct_size", c.c_size_t), *fields]})


I32, I64, F32, PTR = c.c_int32, c.c_int64, c.c_float, c.c_void_p
ProblemC = struct("ProblemC", [
    *[(n, I64) for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim",
                         "head_dim_v")],
    ("dtype", I32), ("out_dtype", I32), ("has_scale", I32), ("scale", F32), ("softcap", F32),
    ("causal", I32), ("window_left", I64), ("window_right", I64), ("align", I32), ("alibi", I32),
    *[(n, I32) for n in ("bias", "bias_dtype", "bias_broadcast_batch", "bias_broadcast_heads",
                         "bias_broadcast_q", "bias_broadcast_kv", "sink")],
    ("dropout_p", F32),
    *[(n, I32) for n in ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")],
    ("total_q", I64), ("total_kv", I64)])
TensorC = struct("TensorC", [("data", PTR), ("dtype", I32), ("device_kind", I32),
                             ("device_index", I32), ("rank", I32), ("shape", I64 * 4),
                             ("strides", I64 * 4)])
TENSORS = ("q", "k", "v", "alibi_slopes", "bias", "sink", "cu_seqlens_q", "cu_seqlens_kv",
           "seqused_q", "seqused_kv")
InputsC = struct("InputsC", [*[(n, PTR) for n in TENSORS], ("dropout_seed", c.c_uint64),
                             ("dropout_offset", c.c_uint64)])
OutputsC = struct("OutputsC", [("o", PTR), ("lse", PTR)])
GRADIENTS = ("o", "lse", "d_o", "d_lse", "dq", "dk", "dv", "dbias", "dsink")
GradientsC = struct("GradientsC", [(n, PTR) for n in GRADIENTS])
OptionsC = struct("OptionsC", [("kernel", c.c_char_p), ("isa", c.c_char_p), ("threads", I32),
                               ("deterministic", I32), ("tile_q", I64), ("tile_kv", I64),
                               ("fast_memory_bytes", I64)])
PassC = struct("PassC", [("kernel", c.c_char_p), ("isa", c.c_char_p), ("tile_q", I64),
                         ("tile_kv", I64), ("threads", I32), ("refusals", I32),
                         ("workspace_bytes", c.c_size_t),
                         *[(n, c.c_double) for n in ("flops", "fast", "least", "standard", "fa1",
                                                     "fa2")]])
LaunchC = struct("LaunchC", [("workspace", PTR), ("workspace_bytes", c.c_size_t),
                             ("stream", PTR)])


def tensor(t):
    """A view of a torch tensor."""
    out = TensorC(c.sizeof(TensorC), t.data_ptr(), DTYPES[t.dtype],
                  CUDA if t.is_cuda else 0, t.device.index or 0, t.dim())
    for i in range(t.dim()):
        out.shape[i], out.strides[i] = t.shape[i], t.stride(i)
    return out


def stream_of(t):
    return torch.cuda.current_stream(t.device).cuda_stream if t.is_cuda else None


class Library:
    """libtilewise, opened from a path."""

    def __init__(self, path):
        self.c = c.CDLL(path)
        self.c.tw_last_error.restype = c.c_char_p
        self.c.tw_plan_describe.restype = c.c_char_p
        self.c.tw_plan_describe.argtypes = [PTR]

    def check(self, status):
        """Raises with the library's own words."""
        if status:
            raise RuntimeError(self.c.tw_last_error().decode())

    def plan(self, tensors, deterministic=False, **fields):
        """A plan for `tensors` (by name, as in tw_inputs; dense unless lengths are given)."""
        q, k, v = (tensors[n] for n in "qkv")
        p = ProblemC(c.sizeof(ProblemC), out_dtype=-1, window_left=-1, window_right=-1)
        packed = q.dim() == 3
        if not packed:
            p.batch, p.seq_q, p.seq_kv = q.shape[0], q.shape[1], k.shape[1]
        p.heads_q, p.heads_kv = q.shape[-2], k.shape[-2]
        p.head_dim, p.head_dim_v, p.dtype = q.shape[-1], v.shape[-1], DTYPES[q.dtype]
        if packed:
            p.total_q, p.total_kv = q.shape[0], k.shape[0]
        for name in ("bias", "sink", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv"):
            setattr(p, name, int(name in tensors))
        if "alibi_slopes" in tensors:
            p.alibi = tensors["alibi_slopes"].dim()
        if "bias" in tensors:
            p.bias_dtype = DTYPES[tensors["bias"].dtype]
            full = (p.batch, p.heads_q, p.seq_q, p.seq_kv)
            for i, n in enumerate(("batch", "heads", "q", "kv")):
                setattr(p, "bias_broadcast_" + n,
                        int(tensors["bias"].shape[i] == 1 and full[i] != 1))
        for name, value in fields.items():
            setattr(p, name, value)
        handle, options = PTR(), OptionsC(c.sizeof(OptionsC), deterministic=int(deterministic))
        self.check(self.c.tw_plan_create(c.byref(p), CUDA if q.is_cuda else 0, q.device.index or 0,
                                         c.byref(options),
                                         c.byref(handle)))
        return handle

    def planned(self, plan, backward=False):
        """What the plan says of a pass."""
        info = PassC(c.sizeof(PassC))
        self.check(self.c.tw_plan_pass(plan, int(backward), c.byref(info)))
        return info

    def tile(self, plan):
        info = self.planned(plan)
        return info.tile_q, info.tile_kv

    def workspace(self, plan, backward, device):
        """What a pass wants to have, 64-byte aligned as torch's memory is."""
        return torch.empty(self.planned(plan, backward).workspace_bytes, dtype=torch.uint8,
                           device=device)

    def backward(self, plan, tensors, gradients, seed=0):
        """A function that launches the backward; `gradients` by name, as in tw_gradients."""
        views = {n: tensor(t) for n, t in {**tensors, **gradients}.items() if t is not None}
        def at(name):
            return c.addressof(views[name]) if name in views else None
        inputs = InputsC(c.sizeof(InputsC), *[at(n) for n in TENSORS], seed, 0)
        grads = GradientsC(c.sizeof(GradientsC), *[at(n) for n in GRADIENTS])
        workspace = self.workspace(plan, True, tensors["q"].device)
        launch = LaunchC(c.sizeof(LaunchC), workspace.data_ptr(), workspace.numel(), None)

        def run():
            launch.stream = stream_of(tensors["q"])
            self.check(self.c.tw_backward(plan, c.byref(inputs), c.byref(grads),
                                          c.byref(launch)))
        run.keep = (views, tensors, gradients, workspace)
        return run

    def forward(self, plan, tensors, o, lse=None, seed=(0, 0)):
        """A function that launches the plan on these tensors, on torch's current stream. `seed` is
        dropout's seed and offset, or the seed alone."""
        views = {n: tensor(t) for n, t in {**tensors, "o": o, "lse": lse}.items()
                 if t is not None}
        def at(name):
            return c.addressof(views[name]) if name in views else None
        inputs = InputsC(c.sizeof(InputsC), *[at(n) for n in TENSORS],
                         *(seed if isinstance(seed, tuple) else (seed, 0)))
        outputs = OutputsC(c.sizeof(OutputsC), at("o"), at("lse"))
        workspace = self.workspace(plan, False, tensors["q"].device)
        launch = LaunchC(c.sizeof(LaunchC), workspace.data_ptr(), workspace.numel(), None)

        def run():
            launch.stream = stream_of(tensors["q"])
            self.check(self.c.tw_forward(plan, c.byref(inputs), c.byref(outputs),
                                         c.byref(launch)))
        run.keep = (views, tensors, o, lse, workspace)
        return run
