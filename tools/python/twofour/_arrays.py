"""Arrays of torch, CuPy and NumPy by DLPack: pointers without copies."""

from __future__ import annotations

import ctypes as c
import sys
from dataclasses import dataclass
from typing import Any, Optional

from ._errors import ArgumentError, ArgumentTypeError

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
#: DLPack's type codes.
_INT, _FLOAT, _BFLOAT = 0, 2, 4
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}
_SMALL = {
    7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz",
    12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 15: "float6_e2m3fn", 16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}  # fmt: skip
#: DLPack's version with flags, and the flag of an array that must not be written.
_VERSION, _READ_ONLY = (1, 0), 1


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


class _DLVersioned(c.Structure):
    _fields_ = [
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("manager_ctx", c.c_void_p),
        ("deleter", c.c_void_p),
        ("flags", c.c_uint64),
        ("tensor", _DLTensor),
    ]


_get_name = c.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = c.c_char_p, (c.py_object,)
_get_pointer = c.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)

NAMES = {
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
    is_read_only: bool = False


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


def _type_name(code: int, bits: int, lanes: int) -> str:
    """ "float64", "uint8"."""
    if code in _SMALL and lanes == 1:
        return _SMALL[code]
    kind = _KINDS.get(code)
    if kind is None or lanes != 1:
        return f"DLPack's type ({code}, {bits}, {lanes})"
    return kind if kind == "bool" else f"{kind}{bits}"


def _capsule(array: Any, stream: Optional[int]) -> Any:
    """An array's capsule, with flags where its package knows them."""
    given = {} if stream is None else {"stream": stream}
    try:
        return array.__dlpack__(max_version=_VERSION, **given)
    except TypeError:  # older packages know no versions
        return array.__dlpack__(**given)


def _look_at_interface(name: str, interface: dict[str, Any]) -> tuple[_DLTensor, bool]:
    """An array of a NumPy that gives no DLPack for arrays that must not be written."""
    shape, text = interface["shape"], str(interface["typestr"])
    codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
    size = int(text[2:])
    if text[0] == ">" or text[1] not in codes:
        raise ArgumentTypeError(f"{name}: expected an array of little-endian numbers, found NumPy's type {text}")
    dims = c.c_int64 * len(shape)
    strides = interface.get("strides")
    tensor = _DLTensor(
        interface["data"][0], _CPU, 0, len(shape), codes[text[1]], 8 * size, 1, dims(*shape),
        dims(*(stride // size for stride in strides)) if strides else None, 0,
    )  # fmt: skip
    return tensor, bool(interface["data"][1])


def _tensor_of(name: str, array: Any, stream: Optional[int]) -> tuple[_DLTensor, bool, Any]:
    """The description of an array, whether it must not be written, and what owns the description."""
    try:
        capsule = _capsule(array, stream)
    except BufferError as error:
        interface = getattr(array, "__array_interface__", None)
        if interface is None:
            raise ArgumentTypeError(f"{name}: expected an array that DLPack can describe, found {error}") from None
        return (*_look_at_interface(name, interface), interface)
    if _get_name(capsule) == b"dltensor_versioned":
        managed = _DLVersioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.major != _VERSION[0]:
            raise ArgumentTypeError(f"{name}: expected DLPack {_VERSION[0]}, found {managed.major}.{managed.minor}")
        return managed.tensor, bool(managed.flags & _READ_ONLY), capsule
    return _DLTensor.from_address(_get_pointer(capsule, b"dltensor")), False, capsule


def look_at(name: str, array: Any, stream: Optional[int] = None, writes: bool = False) -> Array:
    """An array by its `__dlpack__`, ready on `stream` (a cudaStream_t; 0: the default stream).

    Raises ArgumentTypeError where it is no such array or of another type, ArgumentError where it is not contiguous,
    or, if it `writes`, where the array must not be written.
    """
    if not hasattr(array, "__dlpack__"):
        raise ArgumentTypeError(
            f"{name}: expected an array with __dlpack__ (NumPy, torch, CuPy), found {type(array).__name__}"
        )
    if getattr(array, "requires_grad", False):
        array = array.detach()
    kind, index = array.__dlpack_device__()
    if kind not in (_CPU, _CUDA, _CUDA_HOST):
        raise ArgumentTypeError(f"{name}: expected an array on the CPU or on CUDA, found DLPack's device type {kind}")
    tensor, is_read_only, owner = _tensor_of(name, array, (stream or 1) if kind == _CUDA else None)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    step = 1
    for i in reversed(range(tensor.ndim)) if tensor.strides else ():
        if shape[i] != 1 and tensor.strides[i] != step and 0 not in shape:
            raise ArgumentError(
                f"{name}: expected a contiguous array, found strides {list(tensor.strides[: tensor.ndim])} of shape "
                f"{list(shape)}; copy it first, as by numpy.ascontiguousarray"
            )
        step *= shape[i]
    if writes and is_read_only:
        raise ArgumentError(f"{name}: expected an array that may be written, found a read-only one")
    dtype = NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    pointer = (tensor.data or 0) + tensor.byte_offset
    del owner
    return Array(
        pointer, shape, dtype or _type_name(tensor.code, tensor.bits, tensor.lanes), index if kind == _CUDA else None,
        is_read_only,
    )  # fmt: skip


def as_int32(name: str, array: Any, found: Array) -> Any:
    """An array of int64 as int32. A number that int32 cannot hold is refused on the CPU and clamped on CUDA."""
    if found.device is not None:
        limits = (-(2**31), 2**31 - 1)
        if type(array).__module__.partition(".")[0] == "torch":
            return array.clamp(*limits).to(sys.modules["torch"].int32)
        return array.clip(*limits).astype("int32")
    import numpy as np

    values = np.asarray(array)
    narrow = values.astype(np.int32)
    if (narrow != values).any():
        raise ArgumentError(f"{name}: expected numbers of int32, found {values[narrow != values].flat[0]}")
    return narrow


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
