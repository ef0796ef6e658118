"""A linear in FP8 as checkpoints have it, decoded some rows at a time while it multiplies. Imports torch alone."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .._errors import Error
from .stored_module import StoredModule

#: Rows that are decoded at a time: no more of the matrix is ever in another type than FP8.
PIECE = 1024
BLOCK = 128


def scale_block(name: str, n: int, k: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of [N, K] that share a scale: all, one row, or a block. Raises Error on other shapes."""
    if shape in ((), (1,), (1, 1)):
        return n, k
    if shape in ((n,), (n, 1)):
        return 1, k
    if shape == (-(-n // BLOCK), -(-k // BLOCK)):
        return BLOCK, BLOCK
    raise Error(f"{name}: expected scales of the tensor, of rows or of blocks of {BLOCK}, found {list(shape)}")


class Fp8Linear(StoredModule):
    """A linear [N, K] of E4M3 weights times float scales. Weights alone: activations are not quantized."""

    def __init__(
        self, name: str, n: int, k: int, scale: str, scale_shape: tuple[int, ...], scale_dtype: torch.dtype, bias: bool,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.block = scale_block(name, n, k, scale_shape)
        self.scale_name = scale
        self.add("weight", torch.empty(n, k, dtype=torch.float8_e4m3fn, device=device))
        self.add(scale, torch.empty(scale_shape, dtype=scale_dtype, device=device))
        if bias:
            self.add("bias", torch.empty(n, device=device))

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Rows [begin, end) as float32; `begin` a multiple of the block."""
        weight = self.weight[begin:end].to(torch.float32)
        scale = getattr(self, self.scale_name).to(torch.float32)
        if scale.numel() == 1:
            return weight * scale.reshape(())
        if self.block[0] == 1:
            return weight * scale.reshape(-1, 1)[begin:end]
        some = scale[begin // BLOCK : -(-end // BLOCK)]
        wide = some.repeat_interleave(BLOCK, 0)[: end - begin].repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]
        return weight * wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] to [..., N]: weights rounded to x's type once, as the same checkpoint in that type has them."""
        bias: Optional[torch.Tensor] = getattr(self, "bias", None)
        n = self.weight.shape[0]
        out = x.new_empty(*x.shape[:-1], n)
        for begin in range(0, n, PIECE):
            end = min(begin + PIECE, n)
            some = None if bias is None else bias[begin:end].to(x.dtype)
            out[..., begin:end] = torch.nn.functional.linear(x, self.rows(begin, end).to(x.dtype), some)
        return out
