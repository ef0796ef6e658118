"""Whole models, run in float32 from what their directory stores."""

from __future__ import annotations

import ctypes as c
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Union, cast

from ._arrays import is_on_cuda
from ._commands import check_progress
from ._errors import ArgumentError, Interrupted
from ._library import device_number, device_text
from ._owner import Owner, counted
from ._structs import ModelInfo
from ._tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]


def _tokens(tokens: Any) -> Any:
    """A list, or a one-dimensional array of integers of torch, CuPy or NumPy, as int32 on the host."""
    import numpy as np

    if isinstance(tokens, (str, bytes)):
        raise ArgumentError(
            "tokens: expected integers [T], found text; its tokens are those of tokenizer.encode(text), a tokenizer "
            "being Model.tokenizer or twofour.Tokenizer(path)"
        )
    if hasattr(tokens, "__dlpack_device__") and is_on_cuda(tokens):
        raise ArgumentError("tokens: expected an array on the CPU, found one on CUDA")
    found = np.asarray(tokens)
    if found.ndim == 1 and found.size == 0:
        raise ArgumentError("tokens: expected at least one, found none")
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ArgumentError(f"tokens: expected integers [T], found {found.dtype} {list(found.shape)}")
    if not (0 <= found.min() and found.max() < 2**31):
        raise ArgumentError(f"tokens: expected 0 to 2^31 - 1, found {found.min()} to {found.max()}")
    return np.ascontiguousarray(found, dtype=np.int32)


class Model(Owner):
    """A model of a family in lib/run/decoder/README.md, in any format or layout.

    `layers`, `hidden` and `vocabulary` are its sizes, `tokenizer` takes texts apart. Use it in `with`, or call
    `close()`, which ends its sequences.

    Args:
        path: a checkpoint or artifact.
        device: "cpu", where nothing decoded is kept, "cuda" for the current device, or "cuda:1", which hold weights
            as they are stored.
        zero_points: as in `open`.

    Raises:
        NotFoundError: there is no such path.
        Error: the model cannot be run.
    """

    _what = "model"

    def __init__(
        self, path: Union[str, os.PathLike[str]], device: Union[str, int, None] = "cpu", *, zero_points: str = ""
    ) -> None:
        number = device_number(device)
        super().__init__("close_model", number)
        self._sequences: weakref.WeakSet[Sequence] = weakref.WeakSet()
        self._tokenizer: Optional[Tokenizer] = None
        self.path = os.fspath(path)
        self._handle = self._library.handle("open_model_with", os.fsencode(self.path), number, zero_points.encode())
        info = ModelInfo(size=c.sizeof(ModelInfo))
        self._library.check("get_model_info", self._handle, c.byref(info))
        self.layers, self.hidden, self.vocabulary = int(info.layers), int(info.hidden), int(info.vocabulary)

    def _name(self) -> str:
        return repr(self.path)

    def __repr__(self) -> str:
        end = ", closed" if self.closed else ""
        return (
            f"<Model {self.path}: {counted(self.layers, 'layer')}, hidden {self.hidden}, vocabulary {self.vocabulary} on "
            f"{device_text(self._device)}{end}>"
        )

    def _inherited_holds(self) -> int:
        return sum(1 for sequence in self._sequences if not sequence.closed)

    def close(self) -> None:
        """Ends its sequences and frees its memory, once the calls of other threads have ended.

        Closing again does nothing. What is used later raises ClosedError, which is a ValueError, too.
        """
        for sequence in list(getattr(self, "_sequences", ())):
            sequence.close()
        super().close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its tokenizer.json. Raises NotFoundError where it has none, Error on one of another kind."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.path)
        return self._tokenizer

    def sequence(self) -> Sequence:
        """An empty sequence. Raises ClosedError behind `close()`."""
        return Sequence(self)

    def logits(self, tokens: Any) -> Floats:
        """`tokens` [T], integers of a list or an array on the CPU, to float32 logits [T, vocabulary].

        Raises ArgumentError on what are no tokens, Error on tokens outside of the vocabulary or more than the model's
        positions, ClosedError behind `close()`.
        """
        some = _tokens(tokens)
        with self.sequence() as sequence:
            return sequence.append(some, all=True)

    def generate(
        self,
        tokens: Union[str, Iterable[int]],
        count: int,
        *,
        progress: Optional[Callable[[str, int, int], Optional[bool]]] = None,
    ) -> list[int]:
        """The most probable tokens behind some, the lowest of equal ones each time.

        Args:
            tokens: integers [T], or a text, which `tokenizer` takes apart with its special tokens.
            count: how many to append; none is taken for the end of a text.
            progress: called with "generating", tokens done and tokens in all, after each; True stops it.

        Returns:
            `count` tokens; `tokenizer.decode` makes a text of them.

        Raises:
            ArgumentError: what are no tokens, or a count below 0.
            Error: tokens outside of the vocabulary, or more than the model's positions.
            Interrupted: `progress` returned True.
            ClosedError: behind `close()`.
        """
        if operator.index(count) < 0:
            raise ArgumentError(f"count: expected 0 tokens or more, found {count}")
        check_progress(progress)
        given = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
        made = list[int]()
        with self.sequence() as sequence:
            logits = sequence.append(given)
            while len(made) < count:
                made.append(int(logits.argmax()))
                if progress is not None and progress("generating", len(made), count):
                    raise Interrupted(f"generate: interrupted after {len(made)} of {count} tokens: progress returned True")
                if len(made) < count:
                    logits = sequence.append(made[-1:])
        return made


class Sequence(Owner):
    """Tokens that a model has seen, with their keys and values. One thread at a time uses it.

    `size` is how many. Use it in `with`, or call `close()`, which frees their memory.
    """

    _what = "sequence"

    def __init__(self, model: Model) -> None:
        super().__init__("end_sequence", model._device)
        self.size = 0  #: tokens so far
        self._model = model
        handle = model._hold()  # until the sequence is free
        try:
            self._handle = self._library.handle("begin_sequence", handle)
        except BaseException:
            model._release()
            raise
        model._sequences.add(self)

    def _name(self) -> str:
        return f"a sequence of {self._model.path!r}"

    def _freed(self) -> None:
        self._model._release()

    def __repr__(self) -> str:
        return f"<Sequence of {counted(self.size, 'token')} in {self._model.path}{', closed' if self.closed else ''}>"

    def append(self, tokens: Any, all: bool = False) -> Floats:
        """Appends `tokens` [T]: float32 logits of the last, [vocabulary], or of `all`, [T, vocabulary].

        Raises ArgumentError on what are no tokens, Error on a token outside of the vocabulary and beyond the positions
        that the model was made for; the sequence stays as it was. Raises ClosedError behind `close()`, its own or the
        model's.
        """
        import numpy as np

        some = _tokens(tokens)
        shape = (some.size, self._model.vocabulary) if all else (self._model.vocabulary,)
        logits = np.empty(shape, np.float32)
        with self._opened() as handle:
            self._library.check("append", handle, some.ctypes.data, some.size, int(all), logits.ctypes.data)
        self.size += some.size
        return cast("Floats", logits)
