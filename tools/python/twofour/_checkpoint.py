"""Checkpoints and artifacts, open for reading: tensors as they are stored, modules as decoded numbers."""

from __future__ import annotations

import ctypes as c
import json
import operator
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Union, cast

from ._library import Error, Owner, library

if TYPE_CHECKING:
    from types import EllipsisType

    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

#: NumPy's types of safetensors' names; of other types `Tensor.numpy` gives float32 values.
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip

if TYPE_CHECKING:
    Item = Union[int, slice, EllipsisType]
    Index = Union[Item, tuple[Item, ...]]


def _items(name: str, shape: tuple[int, ...], index: Index) -> list[Union[int, slice]]:
    """An index for each dimension: what "..." stands for, and what is left out behind the last, is whole."""
    given = index if isinstance(index, tuple) else (index,)
    items: list[Union[int, slice]] = []
    dots: Optional[int] = None
    for item in given:
        if item is ...:
            if dots is not None:
                raise IndexError(f"{name}: expected one ..., found more")
            dots = len(items)
        elif isinstance(item, slice):
            items.append(item)
        else:
            try:
                items.append(operator.index(cast(int, None if isinstance(item, bool) else item)))
            except TypeError:
                raise IndexError(f"{name}: expected whole numbers, slices and ..., found {item!r}") from None
    missing = len(shape) - len(items)
    if missing < 0:
        raise IndexError(f"{name}: expected at most {len(shape)} dimensions, found {len(items)}")
    at = len(items) if dots is None else dots
    return items[:at] + [slice(None)] * missing + items[at:]


def _ranges(name: str, shape: tuple[int, ...], index: Index) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Ranges [begin, end) of NumPy's basic indexing without steps, and the shape that is left."""
    ranges, left = [], []
    for at, size in zip(_items(name, shape, index), shape):
        if isinstance(at, slice):
            begin, end, step = at.indices(size)
            if step != 1:
                raise IndexError(f"{name}: expected slices without steps, found a step of {step}")
            ranges.append((begin, max(begin, end)))
            left.append(max(begin, end) - begin)
        else:
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
        if copy is False:
            raise ValueError(f"{self.name}: expected copy=None or True, found False: values are decoded")
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
        count = self.nbytes - offset if count is None else count
        if offset < 0 or count < 0:
            raise ValueError(f"{self.name}: expected bytes from 0 on, found {count} from {offset} on")
        if offset + count > self.nbytes:
            raise Error(f"{self.name}: expected bytes in 0 to {self.nbytes}, found {count} from {offset} on")
        return self._checkpoint._read_bytes(self.name, offset, count)

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


class Checkpoint(Owner, Mapping[str, Module]):
    """A checkpoint or artifact, by the names of its modules; see `open`. Safe from several threads."""

    def __init__(self, path: Union[str, os.PathLike[str]], zero_points: str = "") -> None:
        self._library = library()
        self._lock = threading.Lock()
        self._readers, self._closed = 0, False
        self._handle: Optional[c.c_void_p] = None
        self.path = os.fspath(path)
        self._handle = self._library.handle("open_checkpoint_with", os.fsencode(self.path), zero_points.encode())
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
        found = self.modules.get(name)
        if found is None:
            raise KeyError(self._why_missing(name))
        return found

    def _why_missing(self, name: str) -> str:
        """Why a module is not read, where it is there; else its name."""
        if name in self.tensors or self._closed:
            return name
        with self._opened() as handle:
            try:
                self._library.check("read_values", handle, os.fsencode(name), 0, None, None, None, 0)
            except Error as error:
                return str(error)
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __repr__(self) -> str:
        return f"<{self.what}: {len(self.modules)} modules, {len(self.tensors)} tensors in {self.path}>"

    def close(self) -> None:
        """Closes the files, once what other threads read has come. Nothing is read afterwards."""
        with self._lock:
            self._closed = True
        self._free_unused()

    def _free_unused(self) -> None:
        with self._lock:
            if not self._closed or self._readers:
                return
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

    @contextmanager
    def _opened(self) -> Iterator[c.c_void_p]:
        """The handle, which is not freed meanwhile."""
        with self._lock:
            handle = self._handle
            if self._closed or handle is None:
                raise ValueError(f"{self.path!r}: expected an open checkpoint, found a closed one")
            self._readers += 1
        try:
            yield handle
        finally:
            with self._lock:
                self._readers -= 1
            self._free_unused()

    def _read_values(self, name: str, shape: tuple[int, ...], index: Index) -> Floats:
        import numpy as np

        ranges, left = _ranges(name, shape, index)
        values = np.empty(left, dtype=np.float32)
        ends = c.c_int64 * len(ranges)
        with self._opened() as handle:
            self._library.check(
                "read_values", handle, os.fsencode(name), len(ranges), ends(*(r[0] for r in ranges)),
                ends(*(r[1] for r in ranges)), values.ctypes.data, values.size,
            )  # fmt: skip
        return cast("Floats", values)

    def _read_bytes(self, name: str, offset: int, count: int) -> bytes:
        to = c.create_string_buffer(max(count, 1))
        with self._opened() as handle:
            self._library.check("read_bytes", handle, os.fsencode(name), offset, to, count)
        return to.raw[:count]


def open(path: Union[str, os.PathLike[str]], *, zero_points: str = "") -> Checkpoint:
    """Opens a checkpoint or artifact in any dialect, layout or number format, or one safetensors file.

    Reads headers and configs. `zero_points` says how those of INT4 are read if the config contradicts what is
    stored: "stored", "symmetric" or "v2", as --zero-points; reading such a module raises Error without it.
    Raises Error where headers or configs are wrong.
    """
    return Checkpoint(path, zero_points)
