"""One matrix of an artifact as a torch module, multiplied through libtwofour. Imports torch alone."""

from __future__ import annotations

from typing import Any

import torch

from .._layer import layout_parts
from .._errors import Error
from .._linear import Linear, LinearShape
from .stored_module import DTYPES, NAMES, StoredModule, module_of, workspace_of


class _Linear(StoredModule):
    """A linear [N, K] over parameters that hold it as it is stored."""

    def __init__(self, shape: LinearShape) -> None:
        super().__init__(shape.name)
        if shape.experts != 1:
            raise ValueError(f"{shape.name}: expected one matrix, found {shape.experts}")
        self.shape = shape

    def stored(self) -> dict[str, torch.Tensor]:
        """The tensors of the layout by their suffixes, with "global_scale"."""
        raise NotImplementedError

    def linear(self) -> Linear:
        """The matrix over the parameters where they are now. Looks at every byte when they have been moved."""

        def load(device: str) -> Linear:
            tensors = self.stored()
            pointers = {name: t.data_ptr() for name, t in tensors.items()}
            return Linear.over(self.shape, pointers, device, tuple(tensors.values()))

        return self.loaded(load)  # type: ignore[no-any-return]

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
            self.add(part.suffix, torch.empty(part.shape, dtype=DTYPES[part.dtype], device=device))
        self.add("global_scale", torch.empty(1, dtype=torch.float32, device=device))

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
        self.add(self._names[0], torch.empty(n, k // 2, dtype=torch.uint8, device=device))
        self.add(self._names[1], torch.empty(n, k // 16, dtype=torch.float8_e4m3fn, device=device))
        self.add(self._names[2], torch.empty((1,) if compressed_tensors else (), dtype=torch.float32, device=device))
        if bias:
            self.add("bias", torch.empty(n, device=device))

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
def linear(x: torch.Tensor, n: int, key: str) -> torch.Tensor:
    """The linear of a key on x [M, K], to [M, N]."""
    module = module_of(key)
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
    workspace, place, stream = workspace_of(size, x.device)
    matrix.run(rows, NAMES[x.dtype], x.data_ptr(), ids.data_ptr(), out.data_ptr(), place, size, stream)
    return out


@linear.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, n: int, key: str) -> torch.Tensor:
    return x.new_empty(x.shape[0], n)
