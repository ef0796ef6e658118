"""Arrays of torch, CuPy and NumPy by DLPack: pointers without copies."""

from __future__ import annotations

import ctypes as c
import sys
from dataclasses import dataclass
from typing import Any, Optional

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
#: DLPack's type codes.
_INT, _FLOAT, _BFLOAT = 0, 2, 4


class _DLTensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


_get_pointer = c.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)

_NAMES = {
    (_FLOAT, 32): "float32", (_FLOAT, 16): "float16", (_BFLOAT, 16): "bfloat16", (_INT, 32): "int32",
    (_INT, 64): "int64",
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """Where an array is: valid as long as the array itself."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str  #: "float32", "bfloat16", "float16", "int32", "int64"
    device: Optional[int]  #: index of the CUDA device; None: the CPU


def current_stream(array: Any) -> int:
    """The stream that an array's own package works on now: torch's or CuPy's. 0, the default stream, of others."""
    package = type(array).__module__.partition(".")[0]
    if package == "torch":
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream) if array.is_cuda else 0
    if package == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def is_on_cuda(array: Any) -> bool:
    """Whether an array with `__dlpack_device__` is in memory of a CUDA device."""
    return bool(array.__dlpack_device__()[0] == _CUDA)


def look_at(name: str, array: Any, stream: Optional[int] = None) -> Array:
    """An array by its `__dlpack__`, ready on `stream` (a cudaStream_t; 0: the default stream).

    Raises TypeError where it is no such array or of another type, ValueError where it is not contiguous.
    """
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"{name}: expected an array with __dlpack__, found {type(array).__name__}")
    if getattr(array, "requires_grad", False):
        array = array.detach()
    kind, index = array.__dlpack_device__()
    if kind not in (_CPU, _CUDA, _CUDA_HOST):
        raise TypeError(f"{name}: expected an array on the CPU or on CUDA, found DLPack's device type {kind}")
    capsule = array.__dlpack__(stream=(stream or 1)) if kind == _CUDA else array.__dlpack__()
    tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    step = 1
    for i in reversed(range(tensor.ndim)) if tensor.strides else ():
        if shape[i] != 1 and tensor.strides[i] != step and 0 not in shape:
            raise ValueError(f"{name}: expected a contiguous array, found strides {tensor.strides[: tensor.ndim]}")
        step *= shape[i]
    dtype = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(
            f"{name}: expected floats of 16 or 32 bits or integers of 32 or 64, "
            f"found DLPack's type ({tensor.code}, {tensor.bits}, {tensor.lanes})"
        )
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Array(pointer, shape, dtype, index if kind == _CUDA else None)


def empty_like(array: Any) -> Any:
    """An array of the same package, type, shape and device."""
    package = type(array).__module__.partition(".")[0]
    return sys.modules[package].empty_like(array)


def empty_bytes(array: Any, size: int) -> Any:
    """`size` bytes on the device of an array, by its own package's allocator."""
    package = type(array).__module__.partition(".")[0]
    module = sys.modules[package]
    if package == "torch":
        return module.empty(size, dtype=module.uint8, device=array.device)
    return module.empty(size, dtype="uint8")
