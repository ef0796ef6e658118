"""Layers of an artifact in v7, v7-packed or g8, run on arrays of torch, CuPy or NumPy."""

from __future__ import annotations

import ctypes as c
import operator
import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Union

from ._arrays import NAMES, Array, as_int32, current_stream, empty_bytes, empty_like, look_at
from ._errors import ArgumentError, ArgumentTypeError
from ._library import device_number, device_text, library
from ._owner import Owner, counted, size_text
from ._structs import MOST_PARTS, LayerInfo, Options, Part, StoredLayer, Tokens

_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}


@dataclass(frozen=True)
class LayerShape:
    """What a feed-forward block is: routed experts, or a dense MLP as one expert.

    Attributes:
        name: prefix of its tensors: "model.layers.0.mlp.experts".
        layout: "v7", "v7-packed" or "g8".
        experts: E.
        hidden: H, the inputs of w13 and outputs of w2.
        intermediate: I.
        gated: True for silu(gate) * up, False for relu(x)^2.
        top_k: experts a token, as config.json says; 0 where it does not.
        weight_bytes: bytes of its weights as they are stored.
    """

    name: str
    layout: str
    experts: int
    hidden: int
    intermediate: int
    gated: bool
    top_k: int = 0
    weight_bytes: int = 0


@dataclass(frozen=True)
class StoredPart:
    """A tensor of a layout, of one byte an element.

    Attributes:
        suffix: end of its name: "comp" in "P.w13_comp".
        dtype: safetensors' name: "U8", "F8_E4M3".
        shape: (experts, rows, columns).
    """

    suffix: str
    dtype: str
    shape: tuple[int, int, int]


def layout_parts(layout: str, shape: tuple[int, int, int], gated: bool = False) -> list[StoredPart]:
    """The tensors that a matrix of `shape` [E, N, K] has in a `layout`: "v7", "v7-packed", "g8" or "nvfp4".

    E is experts, N output features, K input features; with `gated` it is w13, rows gate then up. The parts have one
    byte an element. Raises ArgumentError on an unknown layout, and on a K that is no multiple of 16.
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
                raise ArgumentError(f"expert_map[{i}]: expected a local expert or -1, found {expert}")
        options.expert_map = (c.c_int32 * len(expert_map))(*expert_map)
        options.expert_map_size = len(expert_map)
    return options


class Artifact(Owner):
    """An artifact in a layout, open for running. Reads headers and configs, no weights.

    `layers` describes each layer. Use it in `with`, or call `close()`; layers that it loaded stay. Raises
    NotFoundError on a missing `path`, Error on what is no artifact in a layout.
    """

    _what = "artifact"

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        super().__init__("close")
        self.path = os.fspath(path)
        self._handle = self._library.handle("open", os.fsencode(self.path))
        self.layers: Sequence[LayerShape] = [self._shape(i) for i in range(self._library.layer_count(self._handle))]

    def _name(self) -> str:
        return repr(self.path)

    def __repr__(self) -> str:
        layouts = ", ".join(sorted({layer.layout for layer in self.layers})) or "no layout"
        size = size_text(sum(layer.weight_bytes for layer in self.layers))
        end = ", closed" if self.closed else ""
        return f"<Artifact {self.path}: {counted(len(self.layers), 'layer')} in {layouts}, {size}{end}>"

    def _shape(self, layer: int) -> LayerShape:
        info = LayerInfo(size=c.sizeof(LayerInfo))
        self._library.check("get_layer_info", self._handle, layer, c.byref(info))
        return LayerShape(
            info.name.decode(), info.layout.decode(), info.experts, info.hidden, info.intermediate, bool(info.gated),
            info.top_k, info.weight_bytes,
        )  # fmt: skip

    def find(self, name: Union[str, int]) -> int:
        """The position in `layers` of a layer by its `name`: its prefix, or the number in it.

        Raises ArgumentError unless it means one, ClosedError behind `close()`.
        """
        if not isinstance(name, str):
            try:
                name = operator.index(name)
            except TypeError:
                raise ArgumentTypeError(f"layer: expected a name or a number, found {type(name).__name__}") from None
        index = c.c_int64()
        with self._opened() as handle:
            self._library.check("find_layer", handle, str(name).encode(), c.byref(index))
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
        """Puts a layer on a device, where every stored byte is checked once.

        Args:
            name: the prefix of its tensors, or the number in it.
            device: "cpu", where it computes from the mapped file, "cuda" (the current device) or "cuda:N".
            expert_map: the local expert of each global one, -1 where it is elsewhere.
            weight_on_input: the router's weight multiplies hidden in place of the result.
            limit: the clamp of gate and up; 0 for none.

        Raises:
            ArgumentError: no layer, or several, have the name; an expert_map that does not fit.
            Error: no such device, or stored bytes that kernels must not read.
        """
        index, number = self.find(name), device_number(device)
        options = _options(expert_map, weight_on_input, limit)
        with self._opened() as handle:
            loaded = self._library.handle("load", handle, index, number, c.byref(options))
        return Layer(loaded, self.layers[index], (), number)

    def route(self, name: Union[str, int], hidden: Any, top_k: Optional[int] = None) -> tuple[Any, Any]:
        """The layer's own router: which experts see each token, and with which weight.

        Args:
            name: as in `load`.
            hidden: float32 [M, H] in host memory: of NumPy, torch or another package with DLPack.
            top_k: experts a token, 1 to E (default: as config.json says).

        Returns:
            NumPy arrays: ids int32 and weights float32, both [M, top_k], the best expert first.

        Raises:
            ArgumentError: hidden or top_k that do not fit the layer.
            Error: a router that the library does not know.
        """
        import numpy as np

        index = self.find(name)
        x = look_at("hidden", hidden)
        shape = self.layers[index]
        _expect("hidden", x, (None, shape.hidden), ("float32",), None)
        count = shape.top_k if top_k is None else operator.index(top_k)
        if not 1 <= count <= shape.experts:
            given = f"found {count}" if top_k is not None else "found none in config.json"
            raise ArgumentError(f"top_k: expected 1 to the {shape.experts} experts of {shape.name}, {given}")
        ids, weights = np.empty((x.shape[0], count), np.int32), np.empty((x.shape[0], count), np.float32)
        with self._opened() as handle:
            self._library.check(
                "route", handle, index, x.pointer, x.shape[0], count, ids.ctypes.data, weights.ctypes.data
            )
        return ids, weights


class Layer(Owner):
    """A layer on a device, called on arrays of that device: `layer(hidden, ids, weights)`.

    Nothing is copied. On CUDA the work goes on the current stream of the arrays' package without waiting, so it can
    be captured in a graph. `shape` describes it. `close()`, or the end of `with`, frees its memory at once.
    """

    _what = "layer"

    def __init__(self, handle: c.c_void_p, shape: LayerShape, keep: Sequence[Any], device: int = 0) -> None:
        super().__init__("unload", device)
        self._handle, self._keep = handle, keep
        self.shape = shape

    def _name(self) -> str:
        return self.shape.name

    def __repr__(self) -> str:
        s, end = self.shape, ", closed" if self.closed else ""
        size = f", {size_text(s.weight_bytes)}" if s.weight_bytes else ""
        kind = "gated" if s.gated else "not gated"
        return (
            f"<Layer {s.name}: {s.layout}, {counted(s.experts, 'expert')}, hidden {s.hidden}, intermediate {s.intermediate}, "
            f"{kind}{size} on {device_text(self._device)}{end}>"
        )

    def _freed(self) -> None:
        self._keep = ()

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
        """A layer over weights in memory of the device, which must stay there. Every stored byte is checked once.

        Args:
            shape: what the layer is: w13 is [E, 2I or I, H], w2 [E, H, I].
            pointers: the tensors of `layout_parts` by their names, "w13_comp", and float32 [E] multipliers as
                "w13_global_scale" and "w2_global_scale".
            device: where they are, as in `Artifact.load`.
            keep: what owns the memory; the layer holds it until it is closed.
            expert_map: as in `Artifact.load`, and so are weight_on_input and limit.

        Raises:
            KeyError: a pointer is missing.
            Error: a layout that is unknown or does not have the sizes, and bytes that kernels must not read.
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
        number = device_number(device)
        return cls(lib.handle("borrow", c.byref(stored), number, c.byref(options)), shape, keep, number)

    def workspace_bytes(self, tokens: int, top_k: int) -> int:
        """Bytes of workspace for up to `tokens` tokens of `top_k` experts; 0 on the CPU.

        Raises Error on sizes that no kernel takes, ClosedError behind `close()`.
        """
        size = c.c_size_t()
        with self._opened() as handle:
            self._library.check("workspace_bytes", handle, tokens, top_k, c.byref(size))
        return size.value

    def run(
        self, m: int, top_k: int, dtype: str, hidden: int, ids: int, weights: int, out: int,
        workspace: int = 0, workspace_bytes: int = 0, stream: int = 0, error_flag: int = 0,
    ) -> None:  # fmt: skip
        """The layer on pointers to memory of its device: `hidden` and `out` [m, H] of `dtype` ("float32", "bfloat16" or
        "float16"), `ids` int32 and `weights` float32 [m, top_k].

        `workspace` points to `workspace_bytes` bytes, aligned to 256; `stream` is a cudaStream_t, 0 the default one;
        `error_flag` points to an int32 that an id out of range sets to 1. Raises Error on shapes that no kernel takes
        and, on the CPU, on ids out of range.
        """
        tokens = Tokens(c.sizeof(Tokens), m, top_k, _DTYPES[dtype], hidden, ids, weights, out, error_flag or None)
        with self._opened() as handle:
            self._library.check("forward", handle, c.byref(tokens), workspace or None, workspace_bytes, stream or None)

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
        """The layer's output [M, H], an array of the package, type and device of `hidden`.

        Args:
            hidden: [M, H] float32, bfloat16 or float16, on the layer's device, contiguous; may be read-only.
            ids: [M, top_k] int32, or int64, which is copied: the experts of each token.
            weights: [M, top_k] float32: their shares.
            out: an array to write in place of a new one.
            workspace: an array of at least `workspace_bytes` on CUDA, of one call at a time; made by the arrays'
                package where it is not given.
            stream: a cudaStream_t, the package's current one where it is not given.

        Raises:
            ArgumentTypeError: no array, or one of a type that is not taken, such as float64 (also a TypeError).
            ArgumentError: shapes or devices that do not fit, a read-only `out` (also a ValueError).
            Error: ids out of range on the CPU; on CUDA they contribute nothing.
        """
        if stream is None:
            stream = current_stream(hidden)
        x = look_at("hidden", hidden, stream)
        _expect("hidden", x, (None, self.shape.hidden), tuple(_DTYPES), x.device)
        out = empty_like(hidden) if out is None else out
        to = look_at("out", out, stream, writes=True)
        chosen, share = look_at("ids", ids, stream), look_at("weights", weights, stream)
        if len(chosen.shape) != 2:
            raise ArgumentError(f"ids: expected [M, top_k], found {list(chosen.shape)}")
        m, top_k = x.shape[0], chosen.shape[1]
        _expect("out", to, (m, self.shape.hidden), (x.dtype,), x.device)
        _expect("ids", chosen, (m, top_k), ("int32", "int64"), x.device)
        _expect("weights", share, (m, top_k), ("float32",), x.device)
        if m == 0:
            return out
        if chosen.dtype == "int64":
            ids = as_int32("ids", ids, chosen)  # lives until the call is done
            chosen = look_at("ids", ids, stream)
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


def _expect(
    name: str, found: Array, shape: tuple[Optional[int], ...], dtypes: tuple[str, ...], device: Optional[int]
) -> None:
    if found.dtype in dtypes and found.device == device:
        if found.shape == shape:
            return
        if len(found.shape) == len(shape) and all(n is None or n == m for n, m in zip(shape, found.shape)):
            return
    where = "the CPU" if device is None else f"CUDA device {device}"
    here = "the CPU" if found.device is None else f"CUDA device {found.device}"
    sizes = ", ".join("M" if n is None else str(n) for n in shape)
    convert = "" if found.dtype in dtypes else f"; convert it to {dtypes[0]} first"
    raised = ArgumentError if found.dtype in NAMES.values() else ArgumentTypeError
    raise raised(
        f"{name}: expected {', '.join(dtypes[:-1])}{' or ' if dtypes[1:] else ''}{dtypes[-1]} [{sizes}] on {where}, found {found.dtype} {list(found.shape)} on "
        f"{here}{convert}"
    )
