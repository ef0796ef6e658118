"""One matrix of an artifact as a torch module, multiplied through libtwofour. Imports torch alone."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from .._layer import layout_parts
from .._library import Error
from .._linear import Linear, LinearShape
from .stored_block import DTYPES, NAMES

_linears: weakref.WeakValueDictionary[int, StoredLinear] = weakref.WeakValueDictionary()


class StoredLinear(torch.nn.Module):  # type: ignore[misc]
    """A linear [N, K] with the tensors of a layout as parameters: "comp", "global_scale" and so on.

    `linear(x)` multiplies [..., K] to [..., N]. On CUDA it works on torch's current stream without waiting.
    """

    def __init__(self, shape: LinearShape, device: Any = None) -> None:
        super().__init__()
        if shape.experts != 1:
            raise ValueError(f"{shape.name}: expected one matrix, found {shape.experts}")
        self.shape = shape
        for part in layout_parts(shape.layout, (1, shape.n, shape.k), shape.gated):
            self._add(part.suffix, torch.empty(part.shape, dtype=DTYPES[part.dtype], device=device))
        self._add("global_scale", torch.empty(1, dtype=torch.float32, device=device))
        self._linear: Optional[Linear] = None
        self._places: tuple[int, ...] = ()
        self.key = id(self)
        _linears[self.key] = self

    def _add(self, name: str, empty: torch.Tensor) -> None:
        self.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))

    def linear(self) -> Linear:
        """The matrix over the parameters where they are now. Looks at every byte when they have been moved."""
        parameters = dict(self.named_parameters())
        places = tuple(p.data_ptr() for p in parameters.values())
        if self._linear is None or places != self._places:
            device = next(iter(parameters.values())).device
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            where = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
            keep = tuple(p.data for p in parameters.values())
            pointers = {name: p.data_ptr() for name, p in parameters.items()}
            self._linear = Linear.over(self.shape, pointers, where, keep)
            self._places = places
        return self._linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] float32, bfloat16 or float16 to [..., N] of the same type."""
        out = torch.ops.twofour.linear(x.reshape(-1, x.shape[-1]), self.shape.n, self.key)
        return out.reshape(*x.shape[:-1], self.shape.n)


@torch.library.custom_op("twofour::linear", mutates_args=())  # type: ignore[untyped-decorator]
def linear(x: torch.Tensor, n: int, key: int) -> torch.Tensor:
    """The linear of a key on x [M, K]."""
    module = _linears[key]
    matrix = module.linear()
    x = x.contiguous()
    if x.shape[1] != module.shape.k or x.dtype not in NAMES:
        raise Error(
            f"{module.shape.name}: expected float32, bfloat16 or float16 [M, {module.shape.k}], "
            f"found {x.dtype} {list(x.shape)}"
        )
    rows = x.shape[0]
    out = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    ids = torch.zeros(rows, dtype=torch.int32, device=x.device)
    size = matrix.workspace_bytes(rows)
    workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    matrix.run(
        rows, NAMES[x.dtype], x.data_ptr(), ids.data_ptr(), out.data_ptr(), workspace.data_ptr() if size else 0,
        size, stream,
    )  # fmt: skip
    return out


@linear.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, n: int, key: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], n)
