"""One matrix of an artifact as a torch module, multiplied through libtwofour. Imports torch alone."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Optional

import torch

from .._layer import layout_parts
from .._library import Error
from .._linear import Linear, LinearShape
from .stored_block import DTYPES, NAMES

_linears: weakref.WeakValueDictionary[int, _Linear] = weakref.WeakValueDictionary()


class _Linear(torch.nn.Module):  # type: ignore[misc]
    """A linear [N, K] over parameters that hold it as it is stored."""

    def __init__(self, shape: LinearShape) -> None:
        super().__init__()
        if shape.experts != 1:
            raise ValueError(f"{shape.name}: expected one matrix, found {shape.experts}")
        self.shape = shape
        self._linear: Optional[Linear] = None
        self._places: tuple[int, ...] = ()
        self.key = id(self)
        _linears[self.key] = self

    def _add(self, name: str, empty: torch.Tensor) -> None:
        self.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> _Linear:
        # Bytes go to other devices, never to other types
        super()._apply(lambda t: t if (moved := fn(t)).device == t.device else t.to(moved.device), recurse)
        return self

    def stored(self) -> dict[str, torch.Tensor]:
        """The tensors of the layout by their suffixes, with "global_scale"."""
        raise NotImplementedError

    def linear(self) -> Linear:
        """The matrix over the parameters where they are now. Looks at every byte when they have been moved."""
        places = tuple(p.data_ptr() for p in self.parameters())
        if self._linear is None or places != self._places:
            tensors = self.stored()
            device = next(iter(tensors.values())).device
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            where = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
            pointers = {name: t.data_ptr() for name, t in tensors.items()}
            self._linear = Linear.over(self.shape, pointers, where, tuple(tensors.values()))
            self._places = places
        return self._linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] float32, bfloat16 or float16 to [..., N] of the same type."""
        out = torch.ops.twofour.linear(x.reshape(-1, x.shape[-1]), self.shape.n, self.key)
        return out.reshape(*x.shape[:-1], self.shape.n)

    def extra_repr(self) -> str:
        return f"{self.shape.layout}, {self.shape.k} to {self.shape.n}"


class StoredLinear(_Linear):
    """A linear [N, K] with the tensors of a layout as parameters: "comp", "global_scale" and so on.

    `linear(x)` multiplies [..., K] to [..., N]. On CUDA it works on torch's current stream without waiting.
    """

    def __init__(self, shape: LinearShape, device: Any = None) -> None:
        super().__init__(shape)
        for part in layout_parts(shape.layout, (1, shape.n, shape.k), shape.gated):
            self._add(part.suffix, torch.empty(part.shape, dtype=DTYPES[part.dtype], device=device))
        self._add("global_scale", torch.empty(1, dtype=torch.float32, device=device))

    def stored(self) -> dict[str, torch.Tensor]:
        return {name: p.data for name, p in self.named_parameters()}


class CheckpointLinear(_Linear):
    """A linear [N, K] in NVFP4 as checkpoints have it, with the names of modelopt or compressed-tensors.

    Weights alone: activations are not quantized. `bias` [N] is added where the linear has one.
    """

    def __init__(self, name: str, n: int, k: int, compressed_tensors: bool, bias: bool, device: Any = None) -> None:
        super().__init__(LinearShape(name, "nvfp4", 1, n, k))
        self._names = ("weight_packed", "weight_scale", "weight_global_scale")
        if not compressed_tensors:
            self._names = ("weight", "weight_scale", "weight_scale_2")
        self._is_reciprocal = compressed_tensors
        self._add(self._names[0], torch.empty(n, k // 2, dtype=torch.uint8, device=device))
        self._add(self._names[1], torch.empty(n, k // 16, dtype=torch.float8_e4m3fn, device=device))
        self._add(self._names[2], torch.empty((1,) if compressed_tensors else (), dtype=torch.float32, device=device))
        if bias:
            self._add("bias", torch.empty(n, device=device))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CheckpointLinear:
        bias = self._parameters.pop("bias", None)
        super()._apply(fn, recurse)
        if bias is not None:
            self._add("bias", fn(bias.data))
        return self

    def stored(self) -> dict[str, torch.Tensor]:
        weight, scale, global_scale = (getattr(self, name).data for name in self._names)
        multiplier = (1.0 / global_scale if self._is_reciprocal else global_scale).reshape(1).contiguous()
        return {"weight": weight, "scale": scale, "global_scale": multiplier}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] float32, bfloat16 or float16 to [..., N] of the same type."""
        out = super().forward(x)
        bias = getattr(self, "bias", None)
        return out if bias is None else out + bias.to(out.dtype)


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
