"""Texts to tokens and back, as a tokenizer.json says."""

from __future__ import annotations

import ctypes as c
import operator
import os
from typing import Iterable, Optional, Union

from ._errors import ArgumentError, ArgumentTypeError
from ._owner import Owner

#: Ids that a file may put around a text, and some for what normalizing adds; more are asked for again.
_ROOM = 64


class Tokenizer(Owner):
    """The tokenizer of a tokenizer.json: byte pair encoding, with the ids of Hugging Face's `tokenizers`.

    `len(tokenizer)` is one more than the largest id. Safe from several threads. Use it in `with`, or call `close()`.

    Args:
        path: a tokenizer.json, or a directory that has one.

    Raises:
        NotFoundError: there is no such file.
        Error: a model of another kind, or invalid values.
    """

    _what = "tokenizer"

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        super().__init__("close_tokenizer")
        self.path = os.fspath(path)
        self._handle = self._library.handle("open_tokenizer", os.fsencode(self.path))
        self._size = int(self._library.vocabulary_size(self._handle))

    def _name(self) -> str:
        return repr(self.path)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.path}: {self._size} ids{', closed' if self.closed else ''}>"

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """The ids of a `text`, with `add_special` also those that the file puts around a text (BOS, EOS).

        A special token in the text always becomes its id. Raises ArgumentTypeError on what is no text, Error on a text
        that UTF-8 cannot hold (lone surrogates), ClosedError behind `close()`.
        """
        if not isinstance(text, str):
            raise ArgumentTypeError(f"text: expected str, found {type(text).__name__}")
        encoded, count = text.encode(errors="surrogatepass"), c.c_int64()
        room = len(encoded) + _ROOM
        with self._opened() as handle:
            while True:
                ids = (c.c_int32 * room)()
                self._library.check(
                    "encode", handle, encoded, len(encoded), int(add_special), c.addressof(ids), room, c.byref(count)
                )
                if count.value <= room:
                    return ids[: count.value]
                room = count.value

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`, integers of a list or an array; with `skip_special` without special tokens.

        Bytes that are not UTF-8 become U+FFFD, and ids without a token are left out, since models have more rows than
        tokens. Raises ArgumentError on numbers that no id can be, ClosedError behind `close()`.
        """
        numbers = [operator.index(one) for one in ids]
        for one in numbers:
            if not 0 <= one < 2**31:
                raise ArgumentError(f"ids: expected 0 to 2^31 - 1, found {one}")
        array, size = (c.c_int32 * len(numbers))(*numbers), c.c_uint64()
        with self._opened() as handle:
            text = self._library.sized_text(
                "decode", size, handle, c.addressof(array), len(numbers), int(skip_special)
            )
        return text.decode(errors="replace")

    def token(self, id: int) -> str:
        """The text of the token of an `id` as the file has it, not decoded; empty where no token has it.

        Raises ArgumentError on a number that no id can be, ClosedError behind `close()`.
        """
        size = c.c_uint64()
        with self._opened() as handle:
            return self._library.sized_text("token", size, handle, id).decode(errors="replace")

    def find(self, token: str) -> Optional[int]:
        """The id of a `token` by its text as the file has it; None where there is none.

        Raises ArgumentError on a text with a NUL, ClosedError behind `close()`.
        """
        id = c.c_int32()
        with self._opened() as handle:
            self._library.check("find_token", handle, token.encode(errors="surrogatepass"), c.byref(id))
        return id.value if id.value >= 0 else None
