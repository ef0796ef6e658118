"""What holds memory of the library: closed once, used by no one afterwards."""

from __future__ import annotations

import ctypes as c
import os
import threading
from types import TracebackType
from typing import Any, NoReturn, Optional, TypeVar

from ._errors import ClosedError, Error
from ._library import CPU, library

_Self = TypeVar("_Self", bound="Owner")


class _Use:
    """The handle of an owner within `with`, which is not freed meanwhile."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def __enter__(self) -> c.c_void_p:
        return self._owner._hold()

    def __exit__(self, *error: object) -> None:
        self._owner._release()


class Owner:
    """What holds a handle of the library: freed by `close()`, at the end of `with` or by the collector, and not copied."""

    #: In messages: "an open artifact".
    _what = "object"
    _handle: Optional[c.c_void_p] = None

    def __init__(self, free: str, device: int = CPU) -> None:
        self._free_name, self._device = free, device
        self._lock, self._holds, self._closed = threading.RLock(), 0, False
        self._process = os.getpid()
        self._library = library()

    def _name(self) -> str:
        """What it is of, for messages and `repr`."""
        return type(self).__name__

    def _check_process(self) -> None:
        """Refuses an object on CUDA that a fork() brought along; of others the lock may be that of another thread."""
        if self._process == os.getpid():
            return
        if self._device != CPU:
            raise Error(
                f"{self._name()}: expected the process that opened it on CUDA, found a process that fork() made of it; "
                "open it there, or start processes by multiprocessing's spawn"
            )
        if not getattr(self, "_is_copy", False):
            self._lock, self._holds, self._is_copy = threading.RLock(), self._inherited_holds(), True

    def _inherited_holds(self) -> int:
        """Holds that last longer than a call, and so hold in the child of a fork, too."""
        return 0

    def _hold(self) -> c.c_void_p:
        self._check_process()
        with self._lock:
            handle = self._handle
            if self._closed or handle is None:
                raise ClosedError(f"{self._name()}: expected an open {self._what}, found a closed one")
            self._holds += 1
        return handle

    def _release(self) -> None:
        with self._lock:
            self._holds -= 1
        self._free_unused()

    def _opened(self) -> _Use:
        return _Use(self)

    def _free_unused(self) -> None:
        with self._lock:
            if not self._closed or self._holds > 0:
                return
            handle, self._handle = self._handle, None
        if handle is None:
            return
        # What fork() copied is the parent's to free: a copy on CUDA cannot be freed, one on the CPU costs nothing.
        if self._process == os.getpid():
            getattr(self._library, self._free_name)(handle)
        self._freed()

    def _freed(self) -> None:
        """Is called once the handle is free."""

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return getattr(self, "_closed", True)

    def close(self) -> None:
        """Frees its memory and files, once the calls of other threads have ended. Closing again does nothing.

        What is used later raises ClosedError, which is a ValueError, too.
        """
        if getattr(self, "_handle", None) is None:
            self._closed = True
            return
        if self._process != os.getpid() and not getattr(self, "_is_copy", False):
            self._lock, self._holds, self._is_copy = threading.RLock(), 0, True
        with self._lock:
            self._closed = True
        self._free_unused()

    def __enter__(self: _Self) -> _Self:
        if self.closed:
            raise ClosedError(f"{self._name()}: expected an open {self._what}, found a closed one")
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind}: expected to be used where it was made, found it copied or pickled; make another")

def counted(count: int, noun: str) -> str:
    """ "1 layer", "2 layers"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size_text(size: int) -> str:
    """Bytes for people: "12.3 MB"."""
    number, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{size} B" if unit == "B" else f"{number:.3g} {unit}"
