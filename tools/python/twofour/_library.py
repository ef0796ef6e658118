"""libtwofour.so: found, loaded, and its functions with their types."""

from __future__ import annotations

import ctypes as c
import importlib.util
import operator
import os
import threading
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional, Union

from ._errors import KINDS, ArgumentError, Error
from ._structs import LayerInfo, ModelInfo, Options, Part, StoredLayer, StoredMatrix, Tokens

#: TWOFOUR_ABI of the header that this file follows.
ABI = 6

#: TWOFOUR_CPU, TWOFOUR_CUDA and TWOFOUR_CUDA_DEVICE(0)
CPU, _CUDA, _CUDA_DEVICE_0 = 0, 1, 16


def device_number(device: Union[str, int, None]) -> int:
    """TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index)."""
    text = f"cuda:{device}" if isinstance(device, int) else str(device or "cpu")
    if text == "cpu":
        return CPU
    kind, _, index = text.partition(":")
    if kind != "cuda" or (index and not (index.isascii() and index.isdigit())):
        raise ArgumentError(f"device: expected cpu, cuda or cuda:N, found {text}")
    return _CUDA_DEVICE_0 + int(index) if index else _CUDA


def device_text(device: int) -> str:
    """The name of a device's number."""
    return "cpu" if device == CPU else "cuda" if device == _CUDA else f"cuda:{device - _CUDA_DEVICE_0}"


#: twofour_progress: user, phase, bytes done, bytes in all; another number than 0 stops the command.
Progress = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_uint64, c.c_uint64)

_INT64S = c.POINTER(c.c_int64)
_HANDLE = c.POINTER(c.c_void_p)


def _number(kind: Any) -> Any:
    """The type of an argument that is a whole number: one that `kind` cannot hold is refused, where ctypes drops bits."""
    bits, signed = 8 * c.sizeof(kind), kind(-1).value < 0
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    class Number:
        @staticmethod
        def from_param(given: Any) -> Any:
            number = operator.index(given)
            if not least <= number <= most:
                raise ArgumentError(f"expected {least} to {most}, found {number}")
            return kind(number)

    return Number


class _Text:
    """The type of an argument that is text: one with a NUL is refused, where ctypes drops what is behind it."""

    @staticmethod
    def from_param(given: Any) -> Any:
        if isinstance(given, bytes) and b"\0" in given:
            raise ArgumentError(f"expected text without a NUL, found {given!r}")
        return c.c_char_p.from_param(given)


class _Bytes:
    """The type of an argument that is bytes of a size that is given, too."""

    @staticmethod
    def from_param(given: Any) -> Any:
        return c.c_char_p.from_param(given)


#: Types of arguments that ctypes checks too little.
_STRICT: dict[Any, Any] = {kind: _number(kind) for kind in (c.c_int, c.c_int32, c.c_int64, c.c_uint64, c.c_size_t)}
_STRICT[c.c_char_p] = _Text

#: Functions that return TWOFOUR_OK or TWOFOUR_ERROR, without "twofour_", and the types of their arguments.
_CHECKED: dict[str, tuple[Any, ...]] = {
    "open": (c.c_char_p, _HANDLE),
    "get_layer_info": (c.c_void_p, c.c_int64, c.POINTER(LayerInfo)),
    "find_layer": (c.c_void_p, c.c_char_p, _INT64S),
    "load": (c.c_void_p, c.c_int64, c.c_int, c.POINTER(Options), _HANDLE),
    "get_part": (c.c_char_p, c.c_int64, c.c_int64, c.c_int64, c.c_int32, c.c_int32, c.POINTER(Part)),
    "borrow": (c.POINTER(StoredLayer), c.c_int, c.POINTER(Options), _HANDLE),
    "borrow_matrix": (c.POINTER(StoredMatrix), c.c_int, _HANDLE),
    "multiply_bytes": (c.c_void_p, c.c_int64, c.POINTER(c.c_size_t)),
    "multiply": (
        c.c_void_p,
        c.c_int64,
        c.c_int32,
        c.c_void_p,
        c.c_void_p,
        c.c_void_p,
        c.c_void_p,
        c.c_size_t,
        c.c_void_p,
    ),
    "workspace_bytes": (c.c_void_p, c.c_int64, c.c_int64, c.POINTER(c.c_size_t)),
    "forward": (c.c_void_p, c.POINTER(Tokens), c.c_void_p, c.c_size_t, c.c_void_p),
    "route": (c.c_void_p, c.c_int64, c.c_void_p, c.c_int64, c.c_int64, c.c_void_p, c.c_void_p),
    "open_checkpoint_with": (c.c_char_p, c.c_char_p, _HANDLE),
    "list": (c.c_void_p, _HANDLE),
    "read_values": (c.c_void_p, c.c_char_p, c.c_int32, _INT64S, _INT64S, c.c_void_p, c.c_uint64),
    "read_bytes": (c.c_void_p, c.c_char_p, c.c_uint64, c.c_void_p, c.c_uint64),
    "open_model_with": (c.c_char_p, c.c_int, c.c_char_p, _HANDLE),
    "get_model_info": (c.c_void_p, c.POINTER(ModelInfo)),
    "begin_sequence": (c.c_void_p, _HANDLE),
    "append": (c.c_void_p, c.c_void_p, c.c_int64, c.c_int32, c.c_void_p),
    "open_tokenizer": (c.c_char_p, _HANDLE),
    "encode": (c.c_void_p, _Bytes, c.c_uint64, c.c_int32, c.c_void_p, c.c_int64, _INT64S),
    "decode": (c.c_void_p, c.c_void_p, c.c_int64, c.c_int32, _HANDLE, c.POINTER(c.c_uint64)),
    "token": (c.c_void_p, c.c_int32, _HANDLE, c.POINTER(c.c_uint64)),
    "find_token": (c.c_void_p, c.c_char_p, c.POINTER(c.c_int32)),
    "choose_formats": (
        c.c_int64,
        _INT64S,
        c.POINTER(c.c_uint64),
        c.POINTER(c.c_double),
        c.c_uint64,
        _INT64S,
    ),
    "command": (c.c_int32, c.POINTER(c.c_char_p), Progress, c.c_void_p, c.POINTER(c.c_int32), _HANDLE),
}
#: Functions that free one pointer.
_FREEING = ("close", "unload", "release_matrix", "free", "close_checkpoint", "close_model", "end_sequence", "close_tokenizer")


def _find() -> str:
    named = os.environ.get("TWOFOUR_LIBRARY")
    if named:
        return named
    for package in ("twofour_cuda", "twofour"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            path = Path(folder) / "lib" / "libtwofour.so"
            if path.exists():
                return str(path)
    raise Error(
        "libtwofour.so: expected it in the installed package, found none; "
        "install the wheel, or name a library in TWOFOUR_LIBRARY"
    )


class Library:
    """The functions of libtwofour.so. Calls release the GIL."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._lib = c.CDLL(path)
        except OSError as error:
            raise Error(f"{path}: expected a library that can be loaded, found {error}") from None
        found = self._lib.twofour_abi() if hasattr(self._lib, "twofour_abi") else 1
        if found < ABI:
            raise Error(f"{path}: expected a library of ABI {ABI} or later, found {found}")
        for name, types in _CHECKED.items():
            function = getattr(self._lib, f"twofour_{name}")
            function.argtypes, function.restype = tuple(_STRICT.get(kind, kind) for kind in types), c.c_int
        for name in _FREEING:
            function = getattr(self._lib, f"twofour_{name}")
            function.argtypes, function.restype = (c.c_void_p,), None
        for name in ("version", "last_error"):
            getattr(self._lib, f"twofour_{name}").restype = c.c_char_p
        self._lib.twofour_last_error_kind.restype = c.c_int
        self._lib.twofour_vocabulary_size.argtypes = (c.c_void_p,)
        self._lib.twofour_vocabulary_size.restype = c.c_int64
        self._lib.twofour_layer_count.argtypes = (c.c_void_p,)
        self._lib.twofour_layer_count.restype = c.c_int64

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._lib, f"twofour_{name}")  # type: ignore[no-any-return]

    def fail(self) -> NoReturn:
        """Raises Error with what the last failed call of this thread found wrong."""
        raise self.error(self.last_error().decode(errors="replace"))

    def error(self, message: str) -> Error:
        """The error of the last failed call of this thread, with a message."""
        kind = int(self.last_error_kind())
        return (KINDS[kind] if kind < len(KINDS) else Error)(message)

    def check(self, name: str, *arguments: Any) -> None:
        """Calls a function of that name; raises Error where it fails, ArgumentError on what is no argument of it."""
        try:
            failed = getattr(self._lib, f"twofour_{name}")(*arguments)
        except c.ArgumentError as error:
            raise ArgumentError(f"{name}: {error}") from None
        if failed != 0:
            self.fail()

    def handle(self, name: str, *arguments: Any) -> c.c_void_p:
        """What a function gives as its last argument."""
        handle = c.c_void_p()
        self.check(name, *arguments, c.byref(handle))
        return handle

    def text(self, name: str, *arguments: Any) -> str:
        """The text that a function gives as its last argument."""
        return self.take(self.handle(name, *arguments))

    def sized_text(self, name: str, size: c.c_uint64, *arguments: Any) -> bytes:
        """The text and its size that a function gives as its last two arguments, which is freed."""
        pointer = c.c_void_p()
        self.check(name, *arguments, c.byref(pointer), c.byref(size))
        try:
            return c.string_at(pointer.value or 0, size.value)
        finally:
            self.free(pointer)

    def take(self, pointer: c.c_void_p) -> str:
        """A text of the library's, which is freed."""
        try:
            return c.string_at(pointer.value or 0).decode(errors="replace")
        finally:
            self.free(pointer)


_loaded: Optional[Library] = None
_lock = threading.Lock()


def _forget() -> None:
    """In the child of a fork, where a thread that held the lock is missing."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def library() -> Library:
    """The library, loaded once. Raises Error where it is missing or older than this module."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Library(_find())
    return _loaded
