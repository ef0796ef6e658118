"""The program's commands as functions: no process is started, and they return what `--json` prints."""

from __future__ import annotations

import atexit
import ctypes as c
import functools
import inspect
import json
import os
import signal
import threading
import time
from typing import Any, Callable, Mapping, Optional, Sequence, TypeVar, Union, cast

from ._errors import ArgumentError, ArgumentTypeError, Error, Interrupted, did_you_mean
from ._library import Progress, library
from ._names import ARGUMENTS
from ._words import python_words

Path = Union[str, "os.PathLike[str]"]
#: Sees phase, bytes done and bytes in all, on the calling thread: before the command, about 20 times a second, and
#: behind it. The first phase is "starting", whose bytes in all are 0. True stops the command. It must call no command.
ProgressCallback = Callable[[str, int, int], Optional[bool]]


def _words(given: Mapping[str, Any]) -> list[str]:
    """Options as the program takes them: max_shard_size="5GB" is --max-shard-size=5GB, True a flag, a list repeats."""
    words = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        several = value if isinstance(value, (list, tuple)) else [value]
        words += [f"{option}={os.fsdecode(one) if isinstance(one, (bytes, os.PathLike)) else one}" for one in several]
    return words


def _place(path: Path) -> Path:
    """A path that is not taken for an option."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ArgumentTypeError(f"expected a path, found {type(path).__name__}")
    text = os.fsdecode(path)
    return os.path.join(os.curdir, text) if text.startswith("-") else path


class _Running:
    """Commands of all threads, which end before the interpreter does: it lets no callback return afterwards."""

    def __init__(self) -> None:
        self.ends = False
        self._lock, self._count = threading.Lock(), 0
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def __enter__(self) -> None:
        with self._lock:
            if self.ends:
                raise Interrupted("expected a command before the interpreter ends, found one as it ends")
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._count -= 1

    def _forget(self) -> None:
        """In the child of a fork, where other threads are not."""
        self._lock, self._count = threading.Lock(), 0

    def _end(self) -> None:
        with self._lock:
            self.ends = True
        while self._count:
            time.sleep(0.01)


_running = _Running()


class _CtrlC:
    """Sees Ctrl-C on the main thread, in place of a KeyboardInterrupt, which could come where ctypes drops it."""

    def __init__(self) -> None:
        self.seen, self.raises = False, False
        usual = signal.default_int_handler
        on_main = threading.current_thread() is threading.main_thread()
        self._usual = usual if on_main and signal.getsignal(signal.SIGINT) is usual else None

    def _see(self, *_: object) -> None:
        self.seen = True
        if self.raises:
            raise KeyboardInterrupt

    def __enter__(self) -> _CtrlC:
        if self._usual:
            signal.signal(signal.SIGINT, self._see)
        return self

    def __exit__(self, *error: object) -> None:
        if self._usual:
            signal.signal(signal.SIGINT, self._usual)


_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Arguments of each function that was `explained`.
_KNOWN: dict[str, list[str]] = {}


def _others_with(name: str) -> str:
    """"; convert(to=...) and compress(to=...) take it" where other functions have an argument."""
    names = [f"{function}({name}=...)" for function, known in _KNOWN.items() if name in known]
    if not names:
        return ""
    return f"; {' and '.join([', '.join(names[:-1]), names[-1]] if len(names) > 1 else names)} take{'s' * (len(names) == 1)} it"


def explained(function: _Function) -> _Function:
    """A function that says in words which of its arguments is unknown, missing or given twice."""
    name, signature = function.__name__, inspect.signature(function)
    known = _KNOWN[name] = list(signature.parameters)

    @functools.wraps(function)
    def checked(*arguments: Any, **given: Any) -> Any:
        for one in given:
            if one not in known:
                raise ArgumentTypeError(
                    f"{name}: unknown argument {one}{_others_with(one) or did_you_mean(one, known)}\n"
                    f"See help(twofour.{name})."
                )
        try:
            signature.bind(*arguments, **given)
        except TypeError as error:
            raise ArgumentTypeError(f"{name}: {error}\nSee help(twofour.{name}).") from None
        return function(*arguments, **given)

    return cast(_Function, checked)


def check_progress(progress: Any) -> None:
    """Refuses what cannot be called."""
    if progress is not None and not callable(progress):
        raise ArgumentTypeError(
            f"progress: expected a function of phase, bytes done and bytes in all, found {progress!r}"
        )


def call(name: str, *arguments: Optional[Path], progress: Optional[ProgressCallback] = None, **given: Any) -> Any:
    """Runs a command on paths, of which some may be left out."""
    return command(name, *(_place(one) for one in arguments if one is not None), progress=progress, **given)


def _values(arguments: Sequence[Path], given: Mapping[str, Any]) -> list[str]:
    """What the caller gave, as texts that messages may repeat."""
    values = [*arguments]
    for value in given.values():
        values += value if isinstance(value, (list, tuple)) else [value]
    return [os.fsdecode(one) if isinstance(one, (bytes, os.PathLike)) else str(one) for one in values]


class Result(dict[str, Any]):
    """What a command returns. Its `repr` counts what is long; `dict(result)` shows all."""

    def __init__(self, command: str, document: Any) -> None:
        super().__init__(document)
        self._command = command

    def __repr__(self) -> str:
        def short(value: Any) -> str:
            if isinstance(value, (list, dict)) and len(value) > 0:
                return f"<{len(value)} {'item' if isinstance(value, list) else 'key'}{'s' * (len(value) != 1)}>"
            text = repr(value)
            return text if len(text) <= _SHOWN else f"<{len(value)} characters>"

        fields = ", ".join(f"{key}: {short(value)}" for key, value in self.items() if key != "schema_version")
        return f"<result of {self._command}: {fields}>"

    def __reduce__(self) -> Any:
        return (Result, (self._command, dict(self)))


#: Longest text of a result that its `repr` shows.
_SHOWN = 100


def _interrupted(name: str, message: str) -> str:
    """The program's message, and what stopped it. Its second line says what files stay, of a command that writes."""
    first, _, rest = message.partition("\n")
    writes = "destination" in ARGUMENTS.get(name, {}).values()
    stays = f"\n{rest}" if rest else "; nothing that it wrote stays" if writes else ""
    return f"{name}: {first}, since progress returned True{stays}"


def command(name: str, *arguments: Path, progress: Optional[ProgressCallback] = None, **given: Any) -> dict[str, Any]:
    """Runs any command of the program: `command("graft", base, donor, out, take="mtp")`.

    Args:
        name: the command, as "stats check".
        arguments: its positional arguments.
        progress: called with phase, bytes done and bytes in all, on the calling thread; True stops the command.
        given: its options with `_` for `-`. A flag is True, an option that may be repeated a list.

    Returns:
        The document that tools/JSON.md describes.

    Raises:
        NotFoundError, ExistsError, ArgumentError: as the functions of the commands.
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.
    """
    check_progress(progress)
    lib = library()
    words = [*name.split(), *_words(given), *(os.fspath(word) for word in arguments)]
    encoded = [os.fsencode(word) for word in words]
    for word in encoded:
        if b"\0" in word:
            raise ArgumentError(f"{name}: expected words without a NUL, found {os.fsdecode(word)!r}")
    raised: list[BaseException] = []

    with _running, _CtrlC() as ctrl_c:

        def watch(_user: Any, phase: Optional[bytes], done: int, total: int) -> int:
            try:
                ctrl_c.raises = progress is not None
                stops = progress is not None and progress((phase or b"").decode(), done, total)
                ctrl_c.raises = False
                return 1 if stops or ctrl_c.seen or _running.ends else 0
            except BaseException as error:
                ctrl_c.raises = False
                raised.append(error)
                return 1

        code, text = c.c_int32(), c.c_void_p()
        failed = lib.command(
            len(encoded), (c.c_char_p * len(encoded))(*encoded), Progress(watch), None, c.byref(code), c.byref(text)
        )
        message = lib.last_error().decode(errors="replace") if failed else ""
        error = lib.error(python_words(message, name.split()[0], _values(arguments, given))) if failed else None
        if type(error) is Error and message.partition(":")[0] in ARGUMENTS.get(name, ()):
            error = ArgumentError(str(error))
        document = lib.take(text) if text else ""
    if raised:
        raise raised[0]
    if ctrl_c.seen:
        raise KeyboardInterrupt
    if error is not None:
        raise Interrupted(_interrupted(name, str(error))) if code.value == 130 else error
    try:
        return Result(name, json.loads(document))
    except ValueError:
        raise ArgumentError(
            f"{' '.join(words)}: expected a command that gives a document, found one that prints text"
        ) from None


def has_cuda() -> bool:
    """Whether this library and this machine can run layers on CUDA. Raises Error where there is no library."""
    return bool(library().has_cuda())


def version() -> str:
    """The version and commit of the library: "0.3.0 (1234567)". Raises Error where there is no library."""
    return cast(str, library().version().decode())
