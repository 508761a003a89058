"""What tilewise needs of a framework's arrays: where their memory is, how to make new ones, and on
which stream to work. One class per framework; none is imported before an array of its kind arrives.

A view is (address, dtype, device kind, device index, shape, strides in elements), the tuple that the
native module reads, or a tensor that it reads itself (python/native/exchange.h). No data is copied.
"""
from __future__ import annotations

import sys
from typing import Any

import numpy as np

# The library's dtypes by number, as in tilewise/tensor.hpp, and by the names frameworks give them.
F32, F16, BF16, I32 = range(4)
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "int32": I32}
SPEC_NAMES = ("f32", "f16", "bf16", "i32")
CPU, CUDA = 0, 1
MOST_DIMS = 4  # that the native module reads
_NUMPY_DTYPES: dict = {}  # dtype.name is slow


def wrong_dtype(name: str, dtype: Any) -> TypeError:
    hint = " (a mask of booleans is a bias of 0 and -inf)" if "bool" in str(dtype) else ""
    if name.startswith(("cu_seqlens", "seqused")):
        return TypeError(f"{name} has dtype {dtype}; accepted: int32")
    return TypeError(f"{name} has dtype {dtype}; accepted: float32, float16, bfloat16{hint}")


class NumPy:
    """numpy.ndarray, on the CPU. bfloat16 is ml_dtypes'."""

    @staticmethod
    def owns(array: Any) -> bool:
        return isinstance(array, np.ndarray)

    @staticmethod
    def dtype(name: str, array: Any) -> int:
        number = _NUMPY_DTYPES.get(array.dtype)
        if number is None:
            number = DTYPES.get(array.dtype.name)
            if number is None or not array.dtype.isnative:
                raise wrong_dtype(name, array.dtype)
            _NUMPY_DTYPES[array.dtype] = number
        return number

    @staticmethod
    def device(array: Any) -> tuple[int, int]:
        return CPU, 0

    @staticmethod
    def address(array: Any) -> int:
        return array.__array_interface__["data"][0] if array.size else 0

    @classmethod
    def view(cls, name: str, array: Any) -> tuple:
        size, strides = array.itemsize, array.strides
        elements = tuple([s // size for s in strides])
        if [s * size for s in elements] != list(strides):
            raise ValueError(f"{name} has strides of {strides} bytes; accepted: multiples of "
                             f"its {size} bytes per element")
        return cls.address(array), cls.dtype(name, array), CPU, 0, array.shape, elements

    @staticmethod
    def empty(shape: tuple, dtype: int, like: Any) -> Any:
        if dtype == F32:
            return np.empty(shape, np.float32)
        return np.empty(shape, like.dtype)  # O and the gradients have their tensor's dtype

    @staticmethod
    def launch(like: Any, bytes_needed: int) -> tuple | None:
        return None  # the native module brings a workspace of the host's


class CuPy:
    """cupy.ndarray, on CuPy's current stream. It has no bfloat16 of its own; ml_dtypes' is taken."""

    @staticmethod
    def owns(array: Any) -> bool:
        module = sys.modules.get("cupy")
        return module is not None and isinstance(array, module.ndarray)

    dtype = NumPy.dtype

    @staticmethod
    def device(array: Any) -> tuple[int, int]:
        return CUDA, array.device.id

    @staticmethod
    def address(array: Any) -> int:
        return array.data.ptr

    @classmethod
    def view(cls, name: str, array: Any) -> tuple:
        strides = tuple(s // array.itemsize for s in array.strides)
        return (array.data.ptr, cls.dtype(name, array), CUDA, array.device.id, array.shape, strides)

    @staticmethod
    def empty(shape: tuple, dtype: int, like: Any) -> Any:
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, np.float32 if dtype == F32 else like.dtype)

    @staticmethod
    def launch(like: Any, bytes_needed: int) -> tuple:
        cupy = sys.modules["cupy"]
        with like.device:
            # The pool hands memory out in stream order: it may be dropped once the work is launched.
            room = cupy.empty(bytes_needed, np.uint8)
            return room.data.ptr, bytes_needed, cupy.cuda.get_current_stream().ptr, room


class Torch:
    """torch.Tensor without autograd, on torch's current stream of the tensor's device. tilewise._torch
    differentiates, and tells which classes the native module reads by itself: none before 2.10."""

    read_natively: tuple = ()
    _dtypes: dict = {}
    _devices: dict = {}

    @staticmethod
    def owns(array: Any) -> bool:
        module = sys.modules.get("torch")
        return module is not None and isinstance(array, module.Tensor)

    @classmethod
    def dtype(cls, name: str, array: Any) -> int:
        if not cls._dtypes:
            torch = sys.modules["torch"]
            cls._dtypes.update({getattr(torch, n): number for n, number in DTYPES.items()})
        number = cls._dtypes.get(array.dtype)
        if number is None:
            raise wrong_dtype(name, array.dtype)
        return number

    @classmethod
    def device(cls, array: Any) -> tuple[int, int]:
        device = array.device
        found = cls._devices.get(device)
        if found is None:
            kinds = {"cpu": CPU, "cuda": CUDA}
            if device.type not in kinds:
                raise ValueError(f"a tensor is on {device}; accepted: cpu, cuda")
            found = cls._devices[device] = (kinds[device.type], device.index or 0)
        return found

    @staticmethod
    def address(array: Any) -> int:
        return array.data_ptr()

    @classmethod
    def view(cls, name: str, array: Any) -> Any:
        number = cls.dtype(name, array)
        if array.dim() > MOST_DIMS:
            raise ValueError(f"{name} has rank {array.dim()}; accepted: at most {MOST_DIMS}")
        if array.layout is not sys.modules["torch"].strided:
            raise TypeError(f"{name} has layout {array.layout}; accepted: torch.strided")
        if type(array) in cls.read_natively:
            return array
        kind, index = cls.device(array)
        return array.data_ptr(), number, kind, index, array.shape, array.stride()

    @staticmethod
    def empty(shape: tuple, dtype: int, like: Any) -> Any:
        torch = sys.modules["torch"]
        if dtype == F32:
            return like.new_empty(shape, dtype=torch.float32)
        return like.new_empty(shape)

    @classmethod
    def launch(cls, like: Any, bytes_needed: int) -> tuple | None:
        device = like.device
        if device.type != "cuda":
            return None
        torch = sys.modules["torch"]
        stream = None  # the native module asks for it
        if not cls.read_natively:
            stream = torch.cuda.current_stream(device.index or 0).cuda_stream
        if not bytes_needed:
            return 0, 0, stream
        # torch's allocator frees in stream order: it may be dropped once the work is launched.
        room = torch.empty(bytes_needed, dtype=torch.uint8, device=device)
        return room.data_ptr(), bytes_needed, stream, room


class DLPack:
    """Any other array that exports DLPack and lies on the CPU: it is read through NumPy, and results
    are NumPy's."""

    @staticmethod
    def owns(array: Any) -> bool:
        return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")


_FRAMEWORKS = (Torch, NumPy, CuPy)


def framework_of(name: str, array: Any) -> Any:
    """The class of `array`'s framework; TypeError for what is no array."""
    for framework in _FRAMEWORKS:
        if framework.owns(array):
            return framework
    raise TypeError(f"{name} is a {type(array).__name__}; accepted: an array of NumPy, PyTorch, "
                    "CuPy or JAX, or one that exports DLPack from the CPU")


def from_dlpack(name: str, array: Any) -> Any:
    """`array`, or NumPy's view of it where no class above knows it."""
    if array is None or type(array) is np.ndarray:
        return array
    if any(f.owns(array) for f in _FRAMEWORKS) or not DLPack.owns(array):
        return array
    if array.__dlpack_device__()[0] != 1:
        raise TypeError(f"{name} is a {type(array).__name__} that is not on the CPU; accepted: there "
                        "arrays of PyTorch, CuPy and JAX")
    return np.from_dlpack(array)
