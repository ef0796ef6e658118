"""One matrix in a layout, multiplied with rows: a linear, or a stack of experts without what is between them."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

from ._layer import _DTYPES, layout_parts
from ._library import device_number, device_text, library
from ._owner import Owner
from ._structs import StoredMatrix


@dataclass(frozen=True)
class LinearShape:
    """A stack of matrices [experts, n, k] in a layout.

    Attributes:
        name: for messages: "model.layers.0.mlp.w13".
        layout: "v7", "v7-packed", "g8", or "nvfp4" as checkpoints store it.
        experts: E; 1 for a linear.
        n: output features.
        k: input features, a multiple of 16.
        gated: True where rows are gate then up, which g8 interleaves; results are gate then up.
    """

    name: str
    layout: str
    experts: int
    n: int
    k: int
    gated: bool = False


class Linear(Owner):
    """A matrix over memory of a device that the caller holds. `run` multiplies by pointers; `shape` describes it.

    `close()`, or the end of `with`, lets the memory go.
    """

    _what = "matrix"

    def __init__(self, handle: c.c_void_p, shape: LinearShape, keep: Sequence[Any], device: int = 0) -> None:
        super().__init__("release_matrix", device)
        self._handle, self._keep = handle, keep
        self.shape = shape

    def _name(self) -> str:
        return self.shape.name

    def __repr__(self) -> str:
        s, end = self.shape, ", closed" if self.closed else ""
        return f"<Linear {s.name}: {s.layout} [{s.experts}, {s.n}, {s.k}] on {device_text(self._device)}{end}>"

    def _freed(self) -> None:
        self._keep = ()

    @classmethod
    def over(
        cls, shape: LinearShape, pointers: Mapping[str, int], device: Union[str, int, None], keep: Sequence[Any] = ()
    ) -> Linear:
        """A matrix over memory that must stay where it is. Every stored byte is checked once.

        Args:
            shape: what the matrix is, [experts, n, k] in a layout.
            pointers: the tensors by the suffixes of `layout_parts`, and float32 [E] multipliers as "global_scale".
            device: where they are: "cpu", "cuda" or "cuda:N".
            keep: what owns the memory; the matrix holds it until it is closed.

        Raises:
            KeyError: a pointer is missing.
            Error: a layout that is unknown or does not have the sizes, and bytes that kernels must not read.
        """
        lib = library()
        stored = StoredMatrix(
            size=c.sizeof(StoredMatrix), name=shape.name.encode(), layout=shape.layout.encode(),
            experts=shape.experts, n=shape.n, k=shape.k, gated=int(shape.gated),
            global_scale=pointers["global_scale"],
        )  # fmt: skip
        for i, part in enumerate(layout_parts(shape.layout, (shape.experts, shape.n, shape.k), shape.gated)):
            stored.parts[i] = pointers[part.suffix]
        number = device_number(device)
        return cls(lib.handle("borrow_matrix", c.byref(stored), number), shape, keep, number)

    def workspace_bytes(self, rows: int) -> int:
        """Bytes of workspace for `rows` rows; 0 on the CPU. Raises Error on a number that no kernel takes."""
        size = c.c_size_t()
        with self._opened() as handle:
            self._library.check("multiply_bytes", handle, rows, c.byref(size))
        return size.value

    def run(
        self, rows: int, dtype: str, x: int, ids: int, out: int, workspace: int = 0, workspace_bytes: int = 0,
        stream: int = 0,
    ) -> None:  # fmt: skip
        """out[r] = w[ids[r]] x[r] by pointers to memory of the device: `x` [rows, k] and `out` [rows, n] of `dtype`
        ("float32", "bfloat16" or "float16"), `ids` int32 [rows].

        `workspace` points to `workspace_bytes` bytes, aligned to 256; `stream` is a cudaStream_t, 0 the default one.
        Raises Error on shapes that no kernel takes and, on the CPU, on ids out of range.
        """
        with self._opened() as handle:
            self._library.check(
                "multiply", handle, rows, _DTYPES[dtype], x, ids, out, workspace or None, workspace_bytes,
                stream or None,
            )  # fmt: skip
