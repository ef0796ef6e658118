"""Checkpoints and artifacts, open for reading: tensors as they are stored, modules as decoded numbers."""

from __future__ import annotations

import ctypes as c
import json
import operator
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, TypeVar, Union, cast

from ._errors import ArgumentError, Error, NameNotFoundError, did_you_mean
from ._owner import Owner, counted, size_text

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
                raise IndexError(
                    f"{name}: expected whole numbers, slices and ..., found {_kind(item)}; for others read all: "
                    "numpy.asarray(...)[index]"
                ) from None
    missing = len(shape) - len(items)
    if missing < 0:
        raise IndexError(f"{name}: expected at most {len(shape)} dimensions, found {len(items)}")
    at = len(items) if dots is None else dots
    return items[:at] + [slice(None)] * missing + items[at:]


def _kind(item: Any) -> str:
    """An index in a few words: "a bool array [576]", "[1, 2]"."""
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if shape is not None and dtype is not None:
        return f"an array of {dtype} {list(shape)}"
    text = repr(item)
    return text if len(text) <= 40 else f"a {type(item).__name__}" + (f" of {len(item)}" if hasattr(item, "__len__") else "")


def _range_text(size: int) -> str:
    return f"expected {-size} to {size - 1}" if size else "expected no number of a dimension of size 0"


def _ranges(name: str, shape: tuple[int, ...], index: Index) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Ranges [begin, end) of NumPy's basic indexing without steps, and the shape that is left."""
    ranges, left = [], []
    for at, size in zip(_items(name, shape, index), shape):
        if isinstance(at, slice):
            begin, end, step = at.indices(size)
            if step != 1:
                raise IndexError(
                    f"{name}: expected slices without steps, found a step of {step}; for others read all: "
                    "numpy.asarray(...)[index]"
                )
            ranges.append((begin, max(begin, end)))
            left.append(max(begin, end) - begin)
        else:
            if not -size <= at < size:
                raise IndexError(f"{name}: {_range_text(size)}, found {at}")
            ranges.append((at % size, at % size + 1))
    return ranges, tuple(left)


class _Numbers:
    """What has a name and values that can be read as float32."""

    name: str
    shape: tuple[int, ...]
    _checkpoint: Checkpoint

    def __getitem__(self, index: Index) -> Floats:
        """Values as float32, indexed as NumPy does, without steps. Reads no others of the dimensions but the last.

        A number alone for each dimension gives a numpy.float32. Raises IndexError on what is no index or out of range,
        Error on values that cannot be decoded, ClosedError behind `close()` of the checkpoint.
        """
        values = self._checkpoint._read_values(self.name, self.shape, index)
        items = index if isinstance(index, tuple) else (index,)
        is_one = values.ndim == 0 and ... not in items
        return values[()] if is_one else values

    def numpy(self) -> Any:
        """All values as a NumPy array of float32 in the shape of `shape`. Raises as indexing does."""
        return self._checkpoint._read_values(self.name, self.shape, ...)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            import sys

            array = getattr(sys.modules.get("numpy"), "ndarray", None)  # who has not imported NumPy means no array
            if not name.startswith("_") and hasattr(array, name):
                kind = type(self).__name__.lower()
                raise AttributeError(f"{type(self).__name__} has no {name}; numpy.asarray({kind}).{name} has all values")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name}: expected a dimension, found a single value, which has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Floats]:
        """The values along the first dimension, read one after the other."""
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        if copy is False:
            raise ArgumentError(f"{self.name}: expected copy=None or True, found False: values are decoded")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # DLPack's CPU

    def __dlpack__(self, **given: Any) -> Any:
        """The values for `from_dlpack` of torch, CuPy, JAX and NumPy, in memory that the result owns."""
        if given.get("copy") is False:
            raise BufferError(f"{self.name}: expected copy=None or True, found False: values are decoded")
        known = {name: value for name, value in given.items() if value is not None and name != "copy"}
        values = self.numpy()
        try:
            return values.__dlpack__(**known)
        except TypeError:  # an older NumPy knows no versions and devices
            return values.__dlpack__()


class _Float32:
    """`dtype` of what is read as float32."""

    @property
    def dtype(self) -> Any:
        """numpy.float32's dtype: the type of the values that are read."""
        import numpy as np

        return np.dtype(np.float32)


def _brief(thing: Any, what: str, stored: int = -1) -> str:
    """<Module model.layers.0.mlp.up_proj: NVFP4 [48, 96], 2.6 kB>"""
    size = f", {size_text(stored)}" if stored >= 0 else ""
    return f"<{type(thing).__name__} {thing.name}: {what} {list(thing.shape)}{size}>"


@dataclass(frozen=True, repr=False)
class Tensor(_Numbers):
    """A tensor as a file stores it, of `nbytes` bytes. Indexing gives its elements as float32.

    NumPy, torch and others read it: `numpy.asarray(tensor)`, `torch.from_dlpack(tensor)` give float32, `numpy()` the
    stored type where NumPy has it. It is read-only and does no arithmetic itself. Raises IndexError on wrong indexes, ClosedError behind `close()`.

    Attributes:
        name: in the file.
        dtype: safetensors' name: "BF16", "F8_E4M3", "U8".
        shape: as stored.
        nbytes: stored bytes.
        file: within the directory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    _checkpoint: Checkpoint = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return _brief(self, self.dtype, self.nbytes)

    def tobytes(self, offset: int = 0, count: Optional[int] = None) -> bytes:
        """`count` stored bytes from byte `offset` on; without `count` all that are left.

        Raises ArgumentError on numbers below 0, Error on bytes that the tensor does not have.
        """
        count = self.nbytes - offset if count is None else count
        if offset < 0 or count < 0:
            raise ArgumentError(f"{self.name}: expected bytes from 0 on, found {count} from {offset} on")
        if offset + count > self.nbytes:
            raise Error(f"{self.name}: expected bytes in 0 to {self.nbytes}, found {count} from {offset} on")
        return self._checkpoint._read_bytes(self.name, offset, count)

    def numpy(self) -> Any:
        """The elements as a NumPy array in their own type where NumPy has it, else (BF16, FP8) as float32.

        Raises Error where the file cannot be read, ClosedError behind `close()` of the checkpoint.
        """
        import numpy as np

        dtype = _NUMPY.get(self.dtype)
        if dtype is None:
            return super().numpy()
        return np.frombuffer(bytearray(self.tobytes()), dtype=dtype).reshape(self.shape)


@dataclass(frozen=True, repr=False)
class Module(_Numbers, _Float32):
    """A linear [N, K], or a stack of experts [E, N, K], in any format. Indexing gives its weights as float32.

    N is output features, K input features. NumPy, torch and others read it: `numpy.asarray(module)`,
    `torch.from_dlpack(module)`. It has `dtype`, `ndim`, `size` and `len()`, and indexes of whole numbers, `...` and
    slices without steps. It is read-only and does no arithmetic: for that, and for masks, steps and lists as indexes,
    take `numpy.asarray(module)`. Raises IndexError on wrong indexes, Error on weights that cannot be decoded,
    ClosedError behind `close()`.

    Attributes:
        name: "model.layers.0.mlp.experts.3.up_proj".
        format: "NVFP4", "FP8", "MXFP4", "INT4", "BF16".
        shape: (N, K) or (E, N, K).
        nbytes: of codes and scales as they are stored, not 4 a weight; of an artifact in a layout, in its source.
        tensors: names of the tensors that hold it.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    nbytes: int
    tensors: tuple[str, ...]
    _checkpoint: Checkpoint = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return _brief(self, self.format, self.nbytes)


@dataclass(frozen=True, repr=False)
class Matrix(_Numbers, _Float32):
    """A matrix [N, K] of a stack, under the name that it would have alone. Indexing gives its weights as float32.

    It is read as a Module is. Raises what a Module does.

    Attributes:
        name: "model.layers.0.mlp.experts.3.up_proj".
        module: name of the stack.
        shape: (N, K).
    """

    name: str
    module: str
    shape: tuple[int, ...]
    _checkpoint: Checkpoint = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return _brief(self, "of " + self.module)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that orders layer 2 before layer 10. Numbers of any length compare by their digits."""
    parts = re.split(r"0*([0-9]+)", name)
    return [(len(part), part) if i % 2 else (-1, part) for i, part in enumerate(parts)]


_Value = TypeVar("_Value")


class _Named(dict[str, _Value]):
    """Things by name; a name that is missing is answered with the nearest."""

    def __init__(self, what: str, *given: Any) -> None:
        super().__init__(*given)
        self._noun = what

    def __missing__(self, name: str) -> _Value:
        raise NameNotFoundError(f"{name}: expected the name of a {self._noun}{did_you_mean(str(name), self)}")


class Checkpoint(Owner, Mapping[str, Module]):
    """A checkpoint or artifact, a mapping of the names of its modules; see `open`. Safe from several threads.

    `modules`, `matrices` (parts of stacks) and `tensors` are mappings by name, `what` says in words what it is. Use it
    in `with`, or call `close()`.
    """

    _what = "checkpoint"

    def __init__(self, path: Union[str, os.PathLike[str]], zero_points: str = "") -> None:
        super().__init__("close_checkpoint")
        self.path = os.fspath(path)
        self._handle = self._library.handle("open_checkpoint_with", os.fsencode(self.path), zero_points.encode())
        found = json.loads(self._library.text("list", self._handle))
        for things in (found["tensors"], found["modules"], found["matrices"]):
            things.sort(key=lambda thing: _natural(thing["name"]))
        self.what: str = found["what"]  #: in words: "NVFP4 checkpoint, modelopt"
        self.tensors: Mapping[str, Tensor] = _Named("tensor", {
            t["name"]: Tensor(t["name"], t["dtype"], tuple(t["shape"]), t["bytes"], t["file"], self)
            for t in found["tensors"]
        })  # fmt: skip
        self.modules: Mapping[str, Module] = _Named("module", {
            m["name"]: Module(m["name"], m["format"], tuple(m["shape"]), m["bytes"], tuple(m["tensors"]), self)
            for m in found["modules"]
        })  # fmt: skip
        self.matrices: Mapping[str, Matrix] = _Named("matrix", {
            m["name"]: Matrix(m["name"], m["module"], tuple(m["shape"]), self) for m in found["matrices"]
        })  # fmt: skip

    def _name(self) -> str:
        return repr(self.path)

    def __getitem__(self, name: str) -> Module:
        """The module of a name. Raises NameNotFoundError (a KeyError), which says what has a name like it."""
        found = self.modules.get(name)
        if found is None:
            raise NameNotFoundError(self._why_missing(name))
        return found

    def _why_missing(self, name: str) -> str:
        """Why a module is not read, where it is there; else what may be meant."""
        if name in self.tensors:
            return f"{name}: expected the name of a module, found that of a tensor; see tensors[{name!r}]"
        if name in self.matrices:
            return f"{name}: expected the name of a module, found that of a matrix; see matrices[{name!r}]"
        if not self._closed and isinstance(name, str):
            with self._opened() as handle:
                try:
                    self._library.check("read_values", handle, os.fsencode(name), 0, None, None, None, 0)
                except Error as error:
                    if "expected a tensor, found none of that name" not in str(error):
                        return str(error)
        near = did_you_mean(str(name), [*self.modules, *self.matrices, *self.tensors])
        return f"{name}: expected the name of a module{near}"

    if not TYPE_CHECKING:  # without the search for a name like it
        def __contains__(self, name):
            return name in self.modules

        def get(self, name, default=None):
            """The module of a name, or `default`."""
            return self.modules.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __repr__(self) -> str:
        size = size_text(sum(t.nbytes for t in self.tensors.values()))
        end = ", closed" if self.closed else ""
        counts = f"{counted(len(self.modules), 'module')}, {counted(len(self.tensors), 'tensor')}"
        return f"<{self.what}: {counts}, {size} in {self.path}{end}>"

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

    Args:
        path: the directory or file. Headers and configs are read, no weights.
        zero_points: how those of INT4 are read if the config contradicts what is stored: "stored", "symmetric" or
            "v2", as in `convert`; reading such a module raises Error without it.

    Raises:
        NotFoundError: there is no such path (also a FileNotFoundError).
        Error: headers or configs are wrong.
    """
    return Checkpoint(path, zero_points)
