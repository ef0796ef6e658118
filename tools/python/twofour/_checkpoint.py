"""Checkpoints and artifacts, open for reading: tensors as they are stored, modules as decoded numbers."""

from __future__ import annotations

import ctypes as c
import json
import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Union, cast

from ._library import library

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

#: NumPy's types of safetensors' names; of other types `Tensor.numpy` gives float32 values.
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip

Index = Union[int, slice, tuple[Union[int, slice], ...]]


def _ranges(name: str, shape: tuple[int, ...], index: Index) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Ranges [begin, end) of NumPy's basic indexing without steps, and the shape that is left."""
    items = index if isinstance(index, tuple) else (index,)
    if len(items) > len(shape):
        raise IndexError(f"{name}: expected at most {len(shape)} dimensions, found {len(items)}")
    ranges, left = [], []
    for item, size in zip(items + (slice(None),) * (len(shape) - len(items)), shape):
        if isinstance(item, slice):
            begin, end, step = item.indices(size)
            if step != 1:
                raise IndexError(f"{name}: expected slices without steps, found a step of {step}")
            ranges.append((begin, max(begin, end)))
            left.append(max(begin, end) - begin)
        else:
            at = int(item)
            if not -size <= at < size:
                raise IndexError(f"{name}: expected a number below {size}, found {at}")
            ranges.append((at % size, at % size + 1))
    return ranges, tuple(left)


class _Numbers:
    """What has a name and values that can be read."""

    name: str
    shape: tuple[int, ...]
    _checkpoint: Checkpoint

    def __getitem__(self, index: Index) -> Floats:
        """Values as float32, indexed as NumPy does, without steps. Reads no others of the dimensions but the last."""
        return self._checkpoint._read_values(self.name, self.shape, index)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        values = self[()]
        return values if dtype is None else values.astype(dtype)


@dataclass(frozen=True)
class Tensor(_Numbers):
    """A tensor as a file stores it. Indexing gives its elements as float32."""

    name: str
    dtype: str  #: safetensors' name: "BF16", "F8_E4M3", "U8"
    shape: tuple[int, ...]
    nbytes: int
    file: str  #: within the directory
    _checkpoint: Checkpoint = field(repr=False, compare=False)

    def tobytes(self, offset: int = 0, count: Optional[int] = None) -> bytes:
        """Stored bytes from `offset` on; without `count` all that are left."""
        return self._checkpoint._read_bytes(self.name, offset, self.nbytes - offset if count is None else count)

    def numpy(self) -> Any:
        """The elements in their own type where NumPy has it, else (BF16, FP8) as float32."""
        import numpy as np

        dtype = _NUMPY.get(self.dtype)
        if dtype is None:
            return self[()]
        return np.frombuffer(bytearray(self.tobytes()), dtype=dtype).reshape(self.shape)


@dataclass(frozen=True)
class Module(_Numbers):
    """A linear [N, K], or a stack of experts [E, N, K], in any format. Indexing gives its weights as float32."""

    name: str  #: "model.layers.0.mlp.experts.3.up_proj"
    format: str  #: "NVFP4", "FP8", "MXFP4", "INT4", "BF16"
    shape: tuple[int, ...]
    nbytes: int  #: codes and scales, as they are stored; of an artifact in a layout, as its source stored them
    tensors: tuple[str, ...]
    _checkpoint: Checkpoint = field(repr=False, compare=False)


@dataclass(frozen=True)
class Matrix(_Numbers):
    """A matrix [N, K] of a stack, under the name that it would have alone. Indexing gives its weights as float32."""

    name: str  #: "model.layers.0.mlp.experts.3.up_proj"
    module: str  #: the stack
    shape: tuple[int, ...]
    _checkpoint: Checkpoint = field(repr=False, compare=False)


class Checkpoint(Mapping[str, Module]):
    """A checkpoint or artifact, by the names of its modules; see `open`. Safe from several threads."""

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self._library = library()
        self._handle: Optional[c.c_void_p] = None
        self.path = os.fspath(path)
        self._handle = self._library.handle("open_checkpoint", os.fsencode(self.path))
        found = json.loads(self._library.text("list", self._handle))
        self.what: str = found["what"]  #: in words: "NVFP4 checkpoint, modelopt"
        self.tensors: Mapping[str, Tensor] = {
            t["name"]: Tensor(t["name"], t["dtype"], tuple(t["shape"]), t["bytes"], t["file"], self)
            for t in found["tensors"]
        }
        self.modules: Mapping[str, Module] = {
            m["name"]: Module(m["name"], m["format"], tuple(m["shape"]), m["bytes"], tuple(m["tensors"]), self)
            for m in found["modules"]
        }
        self.matrices: Mapping[str, Matrix] = {
            m["name"]: Matrix(m["name"], m["module"], tuple(m["shape"]), self) for m in found["matrices"]
        }

    def __getitem__(self, name: str) -> Module:
        return self.modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __repr__(self) -> str:
        return f"<{self.what}: {len(self.modules)} modules, {len(self.tensors)} tensors in {self.path}>"

    def close(self) -> None:
        """Closes the files. Nothing is read afterwards."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.close_checkpoint(handle)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _opened(self) -> c.c_void_p:
        if self._handle is None:
            raise ValueError(f"{self.path}: expected an open checkpoint, found a closed one")
        return self._handle

    def _read_values(self, name: str, shape: tuple[int, ...], index: Index) -> Floats:
        import numpy as np

        ranges, left = _ranges(name, shape, index)
        values = np.empty(left, dtype=np.float32)
        ends = c.c_int64 * len(ranges)
        self._library.check(
            "read_values", self._opened(), os.fsencode(name), len(ranges), ends(*(r[0] for r in ranges)),
            ends(*(r[1] for r in ranges)), values.ctypes.data, values.size,
        )  # fmt: skip
        return cast("Floats", values)

    def _read_bytes(self, name: str, offset: int, count: int) -> bytes:
        if offset < 0 or count < 0:
            raise ValueError(f"{name}: expected bytes from 0 on, found {count} from {offset} on")
        to = c.create_string_buffer(max(count, 1))
        self._library.check("read_bytes", self._opened(), os.fsencode(name), offset, to, count)
        return to.raw[:count]


def open(path: Union[str, os.PathLike[str]]) -> Checkpoint:
    """Opens a checkpoint or artifact in any dialect, layout or number format, or one safetensors file.

    Reads headers and configs. Raises Error where they are wrong.
    """
    return Checkpoint(path)
