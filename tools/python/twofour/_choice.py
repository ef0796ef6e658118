"""The choice of formats by a size."""

from __future__ import annotations

import ctypes as c
from typing import Sequence

from ._library import library


def choose_formats(units: Sequence[Sequence[tuple[int, float]]], limit: int) -> list[int]:
    """An option for each of `units`, so that the costs are at most `limit` in all and the losses least.

    It is the choice of `compress(bits=...)`, for losses that come from elsewhere.

    Args:
        units: the options of each unit, each a cost, as a number of bits or bytes, and a loss of 0 or more
        limit: the largest sum of costs

    Returns:
        The index of the option of each unit.

    Raises:
        Error: the limit is below the least sum of costs, a unit has no options, or a loss is negative.
    """
    counts = [len(unit) for unit in units]
    costs = [cost for unit in units for cost, _ in unit]
    losses = [float(loss) for unit in units for _, loss in unit]
    chosen = (c.c_int64 * len(counts))()
    library().check(
        "choose_formats",
        len(counts),
        (c.c_int64 * len(counts))(*counts),
        (c.c_uint64 * len(costs))(*costs),
        (c.c_double * len(losses))(*losses),
        limit,
        chosen,
    )
    return list(chosen)
