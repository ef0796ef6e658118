"""Slices of stored tensors for ranks: rows along N or columns along K of every expert, at multiples of 128.

Works on arrays of torch and NumPy alike: views where a slice is one run, else one copy by `join`.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

ALIGNMENT = 128


def _checked(what: str, begin: int, end: int, size: int) -> None:
    whole = begin == 0 and end == size
    if not (0 <= begin < end <= size) or (not whole and (begin % ALIGNMENT or (end % ALIGNMENT and end != size))):
        raise ValueError(f"{what}: expected a range in 0 to {size} at multiples of {ALIGNMENT}, found {begin} to {end}")


def along_k(part: str, tensor: Any, k: int, begin: int, end: int) -> Any:
    """Columns [begin, end) of a matrix [E, N, K], of its part "comp", "meta", "scale", "packed" or "weight"."""
    _checked(part, begin, end, k)
    if part == "weight":  # g8 [E, N, K/2]
        return tensor[:, :, begin // 2 : end // 2]
    if part == "packed":  # [E, K/8, 4N]
        return tensor[:, begin // 8 : end // 8]
    if part in ("comp", "meta"):  # [E, K/4, N], [E, K/8, N]
        each = 4 if part == "comp" else 8
        return tensor[:, begin // each : end // each]
    raise ValueError(f"part: expected comp, meta, packed or weight, found {part}")


def scale_along_k(layout: str, tensor: Any, k: int, begin: int, end: int) -> Any:
    """The same of block scales: v7's [E, K/16, N], g8's tiles of 128 rows and 4 blocks [E, Np, Sp]."""
    _checked("scale", begin, end, k)
    if layout == "v7":
        return tensor[:, begin // 16 : end // 16]
    experts, rows, columns = tensor.shape
    tiles = tensor.reshape(experts, rows // 128, columns // 4, 512)[:, :, begin // 64 : (end + 63) // 64]
    return tiles.reshape(experts, rows, tiles.shape[2] * 4)


def along_n(
    layout: str,
    part: str,
    tensor: Any,
    n: int,
    begin: int,
    end: int,
    gated: bool,
    join: Callable[[Sequence[Any], int], Any],
) -> Any:
    """Rows [begin, end) of a matrix [E, N, K]; `gated`: rows [begin, end) of gate and the same of up, N = 2I.

    `join(pieces, axis)` puts arrays together.
    """
    half = n // 2 if gated else n
    _checked(part, begin, end, half)
    if layout == "g8":
        # Rows of gate and up lie eight by eight, so a range of both is one run; scales in tiles of 128 rows
        times = 2 if gated else 1
        if part != "scale":
            return tensor[:, times * begin : times * end]
        first, last = times * begin, times * end
        return tensor[:, first : (last + 127) // 128 * 128]
    planes = 4 if part == "packed" else 1
    experts, rows, columns = tensor.shape
    split = tensor.reshape(experts, rows, planes, columns // planes)
    pieces = [split[:, :, :, at + begin : at + end] for at in ((0, half) if gated else (0,))]
    joined = pieces[0] if len(pieces) == 1 else join(pieces, 3)
    return joined.reshape(experts, rows, -1)


def rank_slice(
    layout: str, name: str, tensor: Any, hidden: int, intermediate: int, gated: bool, begin: int, end: int,
    join: Callable[[Sequence[Any], int], Any],
) -> Any:  # fmt: skip
    """A block's stored tensor "w13_comp", cut to intermediate columns [begin, end): w13 along N, w2 along K."""
    matrix, _, part = name.partition("_")
    if part == "global_scale":
        return tensor
    if matrix == "w13":
        n = (2 if gated else 1) * intermediate
        return along_n(layout, part, tensor, n, begin, end, gated, join)
    if part == "scale":
        return scale_along_k(layout, tensor, intermediate, begin, end)
    return along_k(part, tensor, intermediate, begin, end)
