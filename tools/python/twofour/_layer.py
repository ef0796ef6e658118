"""Layers of an artifact in v7, v7-packed or g8, run on arrays of torch, CuPy or NumPy."""

from __future__ import annotations

import ctypes as c
import operator
import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Union

from ._arrays import Array, current_stream, empty_bytes, empty_like, look_at
from ._library import (
    MOST_PARTS,
    LayerInfo,
    Library,
    Options,
    Owner,
    Part,
    StoredLayer,
    Tokens,
    device_number,
    library,
)

_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}


@dataclass(frozen=True)
class LayerShape:
    """What a feed-forward block is: routed experts, or a dense MLP as one expert."""

    name: str  #: prefix of its tensors: "model.layers.0.mlp.experts"
    layout: str  #: "v7", "v7-packed" or "g8"
    experts: int
    hidden: int
    intermediate: int
    gated: bool  #: silu(gate) * up; else relu(x)^2
    top_k: int = 0  #: experts a token, as config.json says; 0: it does not
    weight_bytes: int = 0  #: as they are stored


@dataclass(frozen=True)
class StoredPart:
    """A tensor of a layout: [experts, rows, cols] elements of one byte each."""

    suffix: str  #: "comp" in "P.w13_comp"
    dtype: str  #: safetensors' name
    shape: tuple[int, int, int]


def layout_parts(layout: str, shape: tuple[int, int, int], gated: bool = False) -> list[StoredPart]:
    """The tensors that a matrix [E, N, K] has in a layout; `gated`: w13, rows gate then up.

    Raises Error on an unknown layout, and on a K that is no multiple of 16.
    """
    lib, part = library(), Part(size=c.sizeof(Part))
    parts: list[StoredPart] = []
    while not parts or len(parts) < part.parts:
        lib.check("get_part", layout.encode(), *shape, int(gated), len(parts), c.byref(part))
        parts.append(StoredPart(part.suffix.decode(), part.dtype.decode(), (shape[0], part.rows, part.cols)))
    return parts


def _options(expert_map: Optional[Sequence[int]], weight_on_input: bool, limit: float) -> Options:
    options = Options(size=c.sizeof(Options), weight_on_input=int(weight_on_input), limit=limit)
    if expert_map is not None:
        expert_map = [operator.index(expert) for expert in expert_map]
        for i, expert in enumerate(expert_map):
            if not -(2**31) <= expert < 2**31:
                raise ValueError(f"expert_map[{i}]: expected a local expert or -1, found {expert}")
        options.expert_map = (c.c_int32 * len(expert_map))(*expert_map)
        options.expert_map_size = len(expert_map)
    return options


class Artifact(Owner):
    """An artifact in a layout, open for running. Reads headers and configs, no weights."""

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self._library = library()
        self._handle: Optional[c.c_void_p] = None
        self.path = os.fspath(path)
        self._handle = self._library.handle("open", os.fsencode(self.path))
        self.layers: Sequence[LayerShape] = [self._shape(i) for i in range(self._library.layer_count(self._handle))]

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.close(self._handle)

    def _shape(self, layer: int) -> LayerShape:
        info = LayerInfo(size=c.sizeof(LayerInfo))
        self._library.check("get_layer_info", self._handle, layer, c.byref(info))
        return LayerShape(
            info.name.decode(), info.layout.decode(), info.experts, info.hidden, info.intermediate, bool(info.gated),
            info.top_k, info.weight_bytes,
        )  # fmt: skip

    def find(self, name: Union[str, int]) -> int:
        """The position of a layer by its prefix or number. Raises Error unless it means one."""
        index = c.c_int64()
        self._library.check("find_layer", self._handle, str(name).encode(), c.byref(index))
        return index.value

    def load(
        self,
        name: Union[str, int],
        device: Union[str, int, None] = "cpu",
        *,
        expert_map: Optional[Sequence[int]] = None,
        weight_on_input: bool = False,
        limit: float = 0.0,
    ) -> Layer:
        """Puts a layer on "cpu", "cuda" or "cuda:N".

        On the CPU it computes from the mapped file. `expert_map` has the local expert of each global one, -1 where it
        is elsewhere; `limit` is the clamp of gate and up.
        """
        index = self.find(name)
        options = _options(expert_map, weight_on_input, limit)
        handle = self._library.handle("load", self._handle, index, device_number(device), c.byref(options))
        return Layer(self._library, handle, self.layers[index], ())

    def route(self, name: Union[str, int], hidden: Any, top_k: Optional[int] = None) -> tuple[Any, Any]:
        """The layer's own router: float32 hidden [M, H] in host memory to ids int32 and weights float32 [M, top_k].

        The arrays that it returns are NumPy's.
        """
        import numpy as np

        index = self.find(name)
        x = look_at("hidden", hidden)
        shape = self.layers[index]
        if x.dtype != "float32" or len(x.shape) != 2 or x.shape[1] != shape.hidden or x.device is not None:
            raise ValueError(f"hidden: expected float32 [M, {shape.hidden}] on the CPU, found {x.dtype} {x.shape}")
        count = top_k or shape.top_k
        ids, weights = np.empty((x.shape[0], count), np.int32), np.empty((x.shape[0], count), np.float32)
        self._library.check(
            "route", self._handle, index, x.pointer, x.shape[0], count, ids.ctypes.data, weights.ctypes.data
        )
        return ids, weights


class Layer(Owner):
    """A layer on a device, called on arrays of that device: `layer(hidden, ids, weights)`.

    Nothing is copied. On CUDA the work goes on the current stream of the arrays' package without waiting, so it can
    be captured in a graph.
    """

    def __init__(self, lib: Library, handle: c.c_void_p, shape: LayerShape, keep: Sequence[Any]) -> None:
        self._library, self._handle, self._keep = lib, handle, keep
        self.shape = shape

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.unload(self._handle)

    @classmethod
    def over(
        cls,
        shape: LayerShape,
        pointers: Mapping[str, int],
        device: Union[str, int, None],
        *,
        keep: Sequence[Any] = (),
        expert_map: Optional[Sequence[int]] = None,
        weight_on_input: bool = False,
        limit: float = 0.0,
    ) -> Layer:
        """A layer over weights in memory of the device, which must stay there: `keep` is what owns it.

        `pointers` has the tensors of `layout_parts` by their names, "w13_comp", and float32 [E] multipliers as
        "w13_global_scale" and "w2_global_scale". Every byte is looked at once; raises Error on what kernels must not
        meet.
        """
        lib = library()
        stored = StoredLayer(
            size=c.sizeof(StoredLayer), name=shape.name.encode(), layout=shape.layout.encode(),
            experts=shape.experts, hidden=shape.hidden, intermediate=shape.intermediate, gated=int(shape.gated),
            w13_global_scale=pointers["w13_global_scale"], w2_global_scale=pointers["w2_global_scale"],
        )  # fmt: skip
        for matrix, to, dims in (
            ("w13", stored.w13_parts, ((2 if shape.gated else 1) * shape.intermediate, shape.hidden)),
            ("w2", stored.w2_parts, (shape.hidden, shape.intermediate)),
        ):
            parts = layout_parts(shape.layout, (shape.experts, *dims), shape.gated and matrix == "w13")
            assert len(parts) <= MOST_PARTS
            for i, part in enumerate(parts):
                to[i] = pointers[f"{matrix}_{part.suffix}"]
        options = _options(expert_map, weight_on_input, limit)
        handle = lib.handle("borrow", c.byref(stored), device_number(device), c.byref(options))
        return cls(lib, handle, shape, keep)

    def workspace_bytes(self, tokens: int, top_k: int) -> int:
        """Bytes of workspace for up to `tokens` tokens; 0 on the CPU."""
        size = c.c_size_t()
        self._library.check("workspace_bytes", self._handle, tokens, top_k, c.byref(size))
        return size.value

    def run(
        self, m: int, top_k: int, dtype: str, hidden: int, ids: int, weights: int, out: int,
        workspace: int = 0, workspace_bytes: int = 0, stream: int = 0, error_flag: int = 0,
    ) -> None:  # fmt: skip
        """The layer on pointers: hidden and out [m, H] of `dtype`, ids int32 and weights float32 [m, top_k]."""
        tokens = Tokens(c.sizeof(Tokens), m, top_k, _DTYPES[dtype], hidden, ids, weights, out, error_flag or None)
        self._library.check(
            "forward", self._handle, c.byref(tokens), workspace or None, workspace_bytes, stream or None
        )

    def __call__(
        self,
        hidden: Any,
        ids: Any,
        weights: Any,
        *,
        out: Any = None,
        workspace: Any = None,
        stream: Optional[int] = None,
    ) -> Any:
        """hidden [M, H] float32, bfloat16 or float16, ids [M, top_k] int32 and weights [M, top_k] float32 to [M, H].

        `workspace` is an array of at least `workspace_bytes` on CUDA, made by the arrays' package where it is not
        given: of one call at a time. `stream` is a cudaStream_t, the package's current one where it is not given.
        On CUDA ids out of range contribute nothing; on the CPU they raise Error.
        """
        if stream is None:
            stream = current_stream(hidden)
        x = look_at("hidden", hidden, stream)
        out = empty_like(hidden) if out is None else out
        to = look_at("out", out, stream)
        chosen, share = look_at("ids", ids, stream), look_at("weights", weights, stream)
        if len(chosen.shape) != 2:
            raise ValueError(f"ids: expected [M, top_k], found {chosen.shape}")
        m, top_k = chosen.shape
        _expect("hidden", x, (m, self.shape.hidden), tuple(_DTYPES), x.device)
        _expect("out", to, (m, self.shape.hidden), (x.dtype,), x.device)
        _expect("ids", chosen, (m, top_k), ("int32",), x.device)
        _expect("weights", share, (m, top_k), ("float32",), x.device)
        if m == 0:
            return out
        size = self.workspace_bytes(m, top_k)
        if size and workspace is None:
            workspace = empty_bytes(hidden, size)
        place = _bytes_at(workspace) if size else (0, 0)
        self.run(m, top_k, x.dtype, x.pointer, chosen.pointer, share.pointer, to.pointer, *place, stream)
        return out


def _bytes_at(workspace: Any) -> tuple[int, int]:
    """Pointer and size of an array of bytes in CUDA memory."""
    interface = workspace.__cuda_array_interface__
    size = 1
    for n in interface["shape"]:
        size *= int(n)
    return int(interface["data"][0]), size * int(interface["typestr"][2:])


def _expect(name: str, found: Array, shape: tuple[int, ...], dtypes: tuple[str, ...], device: Optional[int]) -> None:
    if found.shape == shape and found.dtype in dtypes and found.device == device:
        return
    where = "the CPU" if device is None else f"CUDA device {device}"
    here = "the CPU" if found.device is None else f"CUDA device {found.device}"
    raise ValueError(
        f"{name}: expected {' or '.join(dtypes)} {shape} on {where}, found {found.dtype} {found.shape} on {here}"
    )
