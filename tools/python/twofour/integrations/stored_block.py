"""Feed-forward blocks of an artifact as torch modules: tensors as they are stored, run through libtwofour.

Imports torch alone: transformers and vLLM use it through modules of their own.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch

from .._layer import Layer, LayerShape, layout_parts
from .._errors import Error
from .stored_module import DTYPES, NAMES, StoredModule, module_of, workspace_of


def stored_tensors(shape: LayerShape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and types of the tensors of a block, by their names behind its prefix: "w13_comp"."""
    n = (2 if shape.gated else 1) * shape.intermediate
    tensors: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for matrix, dims, gated in (
        ("w13", (shape.experts, n, shape.hidden), shape.gated),
        ("w2", (shape.experts, shape.hidden, shape.intermediate), False),
    ):
        for part in layout_parts(shape.layout, dims, gated):
            tensors[f"{matrix}_{part.suffix}"] = (part.shape, DTYPES[part.dtype])
        tensors[f"{matrix}_global_scale"] = ((shape.experts,), torch.float32)
    return tensors


def layer_shape(name: str, found: Mapping[str, tuple[int, ...]]) -> LayerShape:
    """What a block is, by the shapes of its tensors: "w13_comp" and so on.

    Raises Error where they are those of no layout.
    """
    try:
        experts = found["w2_global_scale"][0]
        if "w2_comp" in found:
            layout, rows, hidden, n = "v7", 4 * found["w2_comp"][1], found["w2_comp"][2], found["w13_comp"][2]
        elif "w2_packed" in found:
            layout, rows, hidden = "v7-packed", 8 * found["w2_packed"][1], found["w2_packed"][2] // 4
            n = found["w13_packed"][2] // 4
        else:
            layout, rows, hidden = "g8", 2 * found["w2_weight"][2], found["w2_weight"][1]
            n = found["w13_weight"][1]
    except (KeyError, IndexError):
        raise Error(f"{name}: expected w13 and w2 in v7, v7-packed or g8, found {sorted(found)}") from None
    shape = LayerShape(name, layout, experts, hidden, rows, gated=n == 2 * rows)
    for key, (dims, _) in stored_tensors(shape).items():
        if tuple(found.get(key, ())) != dims:
            raise Error(f"{name}.{key}: expected {list(dims)}, found {list(found.get(key, ()))}")
    return shape


class StoredBlock(StoredModule):
    """Routed experts, or a dense MLP as one expert, with the tensors of an artifact as parameters.

    `block(hidden, ids, weights)` runs experts on hidden [M, H] with ids and weights [M, top_k]; `block(hidden)` a
    dense MLP on [..., H]. On CUDA it works on torch's current stream without waiting.
    """

    def __init__(
        self,
        shape: LayerShape,
        *,
        expert_map: Optional[Sequence[int]] = None,
        weight_on_input: bool = False,
        limit: float = 0.0,
        device: Any = None,
    ) -> None:
        super().__init__(shape.name)
        self.shape = shape
        self.options: dict[str, Any] = dict(expert_map=expert_map, weight_on_input=weight_on_input, limit=limit)
        for name, (dims, dtype) in stored_tensors(shape).items():
            self.add(name, torch.empty(dims, dtype=dtype, device=device))

    def layer(self) -> Layer:
        """The layer over the parameters where they are now. Looks at every byte when they have been moved.

        Not to be called first while a CUDA graph is captured: on CUDA it copies to the host.
        """

        def load(device: str) -> Layer:
            tensors = {name: p.data for name, p in self.named_parameters()}
            pointers = {name: t.data_ptr() for name, t in tensors.items()}
            return Layer.over(self.shape, pointers, device, keep=tuple(tensors.values()), **self.options)

        return self.loaded(load)  # type: ignore[no-any-return]

    def forward(
        self, hidden: torch.Tensor, ids: Optional[torch.Tensor] = None, weights: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """hidden [M, H] at ids and weights [M, top_k] to [M, H]; without these a dense MLP on [..., H]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        if ids is None or weights is None:
            ids = torch.zeros(flat.shape[0], 1, dtype=torch.int32, device=flat.device)
            weights = torch.ones(flat.shape[0], 1, dtype=torch.float32, device=flat.device)
        out = torch.ops.twofour.feed_forward(flat, ids.to(torch.int32), weights.to(torch.float32), self.key)
        return out.reshape(hidden.shape)

    def extra_repr(self) -> str:
        s = self.shape
        return f"{s.layout}, experts={s.experts}, hidden={s.hidden}, intermediate={s.intermediate}"


@torch.library.custom_op("twofour::feed_forward", mutates_args=())  # type: ignore[untyped-decorator]
def feed_forward(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, key: str) -> torch.Tensor:
    """The block of a key on hidden [M, H], ids int32 and weights float32 [M, top_k]."""
    block = module_of(key)
    layer = block.layer()
    hidden, ids, weights = hidden.contiguous(), ids.contiguous(), weights.contiguous()
    m, top_k = ids.shape
    if hidden.shape != (m, block.shape.hidden) or weights.shape != (m, top_k) or hidden.dtype not in NAMES:
        raise Error(
            f"{block.shape.name}: expected float32, bfloat16 or float16 [{m}, {block.shape.hidden}] with weights "
            f"[{m}, {top_k}], found {hidden.dtype} {list(hidden.shape)} with {list(weights.shape)}"
        )
    out = torch.empty_like(hidden)
    if m == 0:
        return out
    size = layer.workspace_bytes(m, top_k)
    workspace, place, stream = workspace_of(size, hidden.device)
    pointers = (hidden.data_ptr(), ids.data_ptr(), weights.data_ptr(), out.data_ptr())
    layer.run(m, top_k, NAMES[hidden.dtype], *pointers, place, size, stream)
    return out


@feed_forward.register_fake  # type: ignore[untyped-decorator]
def _(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, key: str) -> torch.Tensor:
    return torch.empty_like(hidden)
