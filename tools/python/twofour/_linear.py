"""One matrix in a layout, multiplied with rows: a linear, or a stack of experts without what is between them."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

from ._layer import _DTYPES, layout_parts
from ._library import Library, Owner, StoredMatrix, device_number, library


@dataclass(frozen=True)
class LinearShape:
    """A stack of matrices [experts, n, k] in a layout."""

    name: str  #: "model.layers.0.mlp.w13"
    layout: str
    experts: int
    n: int
    k: int
    gated: bool = False  #: rows are gate then up, which g8 interleaves; results are gate then up


class Linear(Owner):
    """A matrix over memory of a device that the caller holds. `run` multiplies by pointers."""

    def __init__(self, lib: Library, handle: c.c_void_p, shape: LinearShape, keep: Sequence[Any]) -> None:
        self._library, self._handle, self._keep = lib, handle, keep
        self.shape = shape

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.release_matrix(self._handle)

    @classmethod
    def over(
        cls, shape: LinearShape, pointers: Mapping[str, int], device: Union[str, int, None], keep: Sequence[Any] = ()
    ) -> Linear:
        """A matrix over tensors by the suffixes of `layout_parts`, and float32 [E] multipliers as "global_scale".

        Every byte is looked at once; raises Error on what kernels must not meet. `keep` is what owns the memory.
        """
        lib = library()
        stored = StoredMatrix(
            size=c.sizeof(StoredMatrix), name=shape.name.encode(), layout=shape.layout.encode(),
            experts=shape.experts, n=shape.n, k=shape.k, gated=int(shape.gated),
            global_scale=pointers["global_scale"],
        )  # fmt: skip
        for i, part in enumerate(layout_parts(shape.layout, (shape.experts, shape.n, shape.k), shape.gated)):
            stored.parts[i] = pointers[part.suffix]
        return cls(lib, lib.handle("borrow_matrix", c.byref(stored), device_number(device)), shape, keep)

    def workspace_bytes(self, rows: int) -> int:
        """Bytes of workspace for `rows` rows; 0 on the CPU."""
        size = c.c_size_t()
        self._library.check("multiply_bytes", self._handle, rows, c.byref(size))
        return size.value

    def run(
        self, rows: int, dtype: str, x: int, ids: int, out: int, workspace: int = 0, workspace_bytes: int = 0,
        stream: int = 0,
    ) -> None:  # fmt: skip
        """out[r] = w[ids[r]] x[r] by pointers: x [rows, k] and out [rows, n] of `dtype`, ids int32 [rows]."""
        self._library.check(
            "multiply", self._handle, rows, _DTYPES[dtype], x, ids, out, workspace or None, workspace_bytes,
            stream or None,
        )  # fmt: skip
