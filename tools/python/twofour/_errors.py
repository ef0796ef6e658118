"""Errors, with the message of the program in Python's words."""

from __future__ import annotations

import difflib
import errno
import os
from typing import Iterable


class Error(Exception):
    """What cannot be done: where, what was expected, what was found. The base of this module's errors."""


class NotFoundError(Error, FileNotFoundError):
    """A file or directory is missing. `filename` names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno, self.strerror = errno.ENOENT, os.strerror(errno.ENOENT)
        self.filename = message.partition(": ")[0]

    def __str__(self) -> str:
        return str(self.args[0])


class ExistsError(Error, FileExistsError):
    """A file or directory is there and may not be replaced. `filename` names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno, self.strerror = errno.EEXIST, os.strerror(errno.EEXIST)
        self.filename = message.partition(": ")[0]

    def __str__(self) -> str:
        return str(self.args[0])


class ArgumentError(Error, ValueError):
    """An argument has an invalid value, or does not fit the others."""


class ArgumentTypeError(Error, TypeError):
    """An argument is unknown, or of a type that is not taken."""


class NameNotFoundError(Error, KeyError):
    """A checkpoint has no module, matrix or tensor of a name."""

    def __str__(self) -> str:
        return str(self.args[0])


class ClosedError(ArgumentError):
    """An object was used after `close()`."""


class Interrupted(Error):
    """A command that its progress callback stopped. What it had finished stays, as after Ctrl-C."""


#: By what twofour_last_error_kind() returns.
KINDS: tuple[type[Error], ...] = (Error, NotFoundError, ExistsError, ArgumentError)

#: Of more names only those are compared in full that share the most at both ends.
_COMPARED = 50


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """"; did you mean up_proj?" where a name is like a word, else nothing."""

    def shared(name: str) -> int:
        ends = (name[::-1], word[::-1])
        return len(os.path.commonprefix((name, word))) + len(os.path.commonprefix(ends))

    near = sorted(names, key=shared, reverse=True)[:_COMPARED]
    found = difflib.get_close_matches(word, near, n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""
