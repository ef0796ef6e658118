"""Whole models, run in float32 from what their directory stores."""

from __future__ import annotations

import ctypes as c
import operator
import os
from typing import TYPE_CHECKING, Any, Iterable, Optional, Union, cast

from ._arrays import is_on_cuda
from ._library import ModelInfo, Owner, device_number, library

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]


def _tokens(tokens: Any) -> Any:
    """A list, or a one-dimensional array of integers of torch, CuPy or NumPy, as int32 on the host."""
    import numpy as np

    if hasattr(tokens, "__dlpack_device__") and is_on_cuda(tokens):
        raise ValueError("tokens: expected an array on the CPU, found one on CUDA")
    found = np.asarray(tokens)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"tokens: expected integers [T], found {found.dtype} {found.shape}")
    if found.size and not (0 <= found.min() and found.max() < 2**31):
        raise ValueError(f"tokens: expected 0 to 2^31 - 1, found {found.min()} to {found.max()}")
    return np.ascontiguousarray(found, dtype=np.int32)


class Model(Owner):
    """A model of a family in lib/run/decoder/README.md, in any format or layout.

    `device` is "cpu", where nothing decoded is kept, "cuda" for the current device, or "cuda:1", which hold weights
    as they are stored. `zero_points` is as in `open`. Raises Error where the model cannot be run.
    """

    def __init__(
        self, path: Union[str, os.PathLike[str]], device: Union[str, int, None] = "cpu", *, zero_points: str = ""
    ) -> None:
        self._library = library()
        self._handle: Optional[c.c_void_p] = None
        self.path = os.fspath(path)
        self._handle = self._library.handle(
            "open_model_with", os.fsencode(self.path), device_number(device), zero_points.encode()
        )
        info = ModelInfo(size=c.sizeof(ModelInfo))
        self._library.check("get_model_info", self._handle, c.byref(info))
        self.layers, self.hidden, self.vocabulary = int(info.layers), int(info.hidden), int(info.vocabulary)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.close_model(self._handle)

    def sequence(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self)

    def logits(self, tokens: Any) -> Floats:
        """tokens [T] to logits [T, vocabulary]."""
        return self.sequence().append(tokens, all=True)

    def generate(self, tokens: Iterable[int], count: int) -> list[int]:
        """The `count` most probable tokens behind some, the lowest of equal ones each time."""
        if operator.index(count) < 0:
            raise ValueError(f"count: expected 0 tokens or more, found {count}")
        sequence, made = self.sequence(), list[int]()
        logits = sequence.append(tokens)
        while len(made) < count:
            made.append(int(logits.argmax()))
            if len(made) < count:
                logits = sequence.append(made[-1:])
        return made


class Sequence(Owner):
    """Tokens that a model has seen, with their keys and values. One thread at a time uses it."""

    def __init__(self, model: Model) -> None:
        self._library, self._model = model._library, model
        self._handle: Optional[c.c_void_p] = self._library.handle("begin_sequence", model._handle)
        self.size = 0  #: tokens so far

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.end_sequence(self._handle)

    def append(self, tokens: Any, all: bool = False) -> Floats:
        """Appends tokens [T]: the logits of the last, [vocabulary], or of `all`, [T, vocabulary].

        Raises Error on a token outside of the vocabulary and beyond the positions that the model was made for.
        """
        import numpy as np

        some = _tokens(tokens)
        shape = (some.size, self._model.vocabulary) if all else (self._model.vocabulary,)
        logits = np.empty(shape, np.float32)
        self._library.check("append", self._handle, some.ctypes.data, some.size, int(all), logits.ctypes.data)
        self.size += some.size
        return cast("Floats", logits)
