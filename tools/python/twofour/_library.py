"""libtwofour.so: found, loaded, and its functions with their types."""

from __future__ import annotations

import ctypes as c
import importlib.util
import operator
import os
import threading
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional, Union

#: TWOFOUR_ABI of the header that this file follows.
ABI = 4
MOST_PARTS = 4


class Error(Exception):
    """What the program reports with exit code 2: where, what was expected, what was found."""


class Interrupted(Error):
    """A command that its progress callback stopped. What it had finished stays, as after Ctrl-C."""


class LayerInfo(c.Structure):
    """twofour_layer_info"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("hidden", c.c_int64),
        ("intermediate", c.c_int64),
        ("gated", c.c_int32),
        ("top_k", c.c_int32),
        ("weight_bytes", c.c_uint64),
        ("device_bytes", c.c_uint64),
    ]


class Options(c.Structure):
    """twofour_options"""

    _fields_ = [
        ("size", c.c_size_t),
        ("expert_map", c.POINTER(c.c_int32)),
        ("expert_map_size", c.c_int64),
        ("weight_on_input", c.c_int32),
        ("limit", c.c_float),
    ]


class Tokens(c.Structure):
    """twofour_tokens"""

    _fields_ = [
        ("size", c.c_size_t),
        ("m", c.c_int64),
        ("top_k", c.c_int64),
        ("dtype", c.c_int32),
        ("hidden", c.c_void_p),
        ("topk_ids", c.c_void_p),
        ("topk_weights", c.c_void_p),
        ("out", c.c_void_p),
        ("error_flag", c.c_void_p),
    ]


class Part(c.Structure):
    """twofour_part"""

    _fields_ = [
        ("size", c.c_size_t),
        ("suffix", c.c_char_p),
        ("dtype", c.c_char_p),
        ("rows", c.c_int64),
        ("cols", c.c_int64),
        ("parts", c.c_int32),
    ]


class StoredLayer(c.Structure):
    """twofour_stored_layer"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("hidden", c.c_int64),
        ("intermediate", c.c_int64),
        ("gated", c.c_int32),
        ("w13_parts", c.c_void_p * MOST_PARTS),
        ("w2_parts", c.c_void_p * MOST_PARTS),
        ("w13_global_scale", c.c_void_p),
        ("w2_global_scale", c.c_void_p),
    ]


class StoredMatrix(c.Structure):
    """twofour_stored_matrix"""

    _fields_ = [
        ("size", c.c_size_t),
        ("name", c.c_char_p),
        ("layout", c.c_char_p),
        ("experts", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
        ("gated", c.c_int32),
        ("parts", c.c_void_p * MOST_PARTS),
        ("global_scale", c.c_void_p),
    ]


class ModelInfo(c.Structure):
    """twofour_model_info"""

    _fields_ = [
        ("size", c.c_size_t),
        ("layers", c.c_int64),
        ("hidden", c.c_int64),
        ("vocabulary", c.c_int64),
    ]


#: TWOFOUR_CPU, TWOFOUR_CUDA and TWOFOUR_CUDA_DEVICE(0)
_CPU, _CUDA, _CUDA_DEVICE_0 = 0, 1, 16


def device_number(device: Union[str, int, None]) -> int:
    """TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index)."""
    text = f"cuda:{device}" if isinstance(device, int) else str(device or "cpu")
    if text == "cpu":
        return _CPU
    kind, _, index = text.partition(":")
    if kind != "cuda" or (index and not (index.isascii() and index.isdigit())):
        raise ValueError(f"device: expected cpu, cuda or cuda:N, found {text}")
    return _CUDA_DEVICE_0 + int(index) if index else _CUDA


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
                raise ValueError(f"expected {least} to {most}, found {number}")
            return kind(number)

    return Number


class _Text:
    """The type of an argument that is text: one with a NUL is refused, where ctypes drops what is behind it."""

    @staticmethod
    def from_param(given: Any) -> Any:
        if isinstance(given, bytes) and b"\0" in given:
            raise ValueError(f"expected text without a NUL, found {given!r}")
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
    "command": (c.c_int32, c.POINTER(c.c_char_p), Progress, c.c_void_p, c.POINTER(c.c_int32), _HANDLE),
}
#: Functions that free one pointer.
_FREEING = ("close", "unload", "release_matrix", "free", "close_checkpoint", "close_model", "end_sequence")


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


class Owner:
    """What frees a handle at its end, and so is not copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind}: expected to be used where it was made, found it copied or pickled; make another")


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
        self._lib.twofour_layer_count.argtypes = (c.c_void_p,)
        self._lib.twofour_layer_count.restype = c.c_int64

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._lib, f"twofour_{name}")  # type: ignore[no-any-return]

    def fail(self) -> NoReturn:
        """Raises Error with what the last failed call of this thread found wrong."""
        raise Error(self.last_error().decode(errors="replace"))

    def check(self, name: str, *arguments: Any) -> None:
        """Calls a function of that name; raises Error where it fails, ValueError on what is no argument of it."""
        try:
            failed = getattr(self._lib, f"twofour_{name}")(*arguments)
        except c.ArgumentError as error:
            raise ValueError(f"{name}: {error}") from None
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

    def take(self, pointer: c.c_void_p) -> str:
        """A text of the library's, which is freed."""
        try:
            return c.string_at(pointer.value or 0).decode(errors="replace")
        finally:
            self.free(pointer)


_loaded: Optional[Library] = None
_lock = threading.Lock()


def library() -> Library:
    """The library, loaded once. Raises Error where it is missing or older than this module."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Library(_find())
    return _loaded
