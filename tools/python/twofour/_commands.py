"""The program's commands as functions: no process is started, and they return what `--json` prints."""

from __future__ import annotations

import atexit
import ctypes as c
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Union, cast

from ._library import Error, Interrupted, Progress, library

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _documents as documents, _options as options

Path = Union[str, "os.PathLike[str]"]
#: Sees phase, bytes done and bytes in all, on the calling thread: before the command, about 20 times a second, and
#: behind it. True stops the command. It must call no command.
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


def command(name: str, *arguments: Path, progress: Optional[ProgressCallback] = None, **given: Any) -> dict[str, Any]:
    """Runs any command of the program: `command("graft", base, donor, out, take="mtp")`.

    Arguments and options are those of tools/README.md, the result that of tools/JSON.md. Raises Error with the
    program's message, Interrupted where `progress` returned True, and KeyboardInterrupt on Ctrl-C once the command
    has tidied up.
    """
    lib = library()
    words = [*name.split(), *_words(given), *(os.fspath(word) for word in arguments)]
    encoded = [os.fsencode(word) for word in words]
    for word in encoded:
        if b"\0" in word:
            raise ValueError(f"{name}: expected words without a NUL, found {os.fsdecode(word)!r}")
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
        document = lib.take(text) if text else ""
    if raised:
        raise raised[0]
    if ctrl_c.seen:
        raise KeyboardInterrupt
    if failed:
        raise (Interrupted if code.value == 130 else Error)(message)
    try:
        return cast("dict[str, Any]", json.loads(document))
    except ValueError:
        raise Error(f"{' '.join(words)}: expected a command that gives a document, found one that prints text") from None


def inspect(
    path: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Inspect]
) -> documents.Inspect:
    """What a checkpoint or artifact holds: tensors and modules with names that differ only in numbers together."""
    return cast("documents.Inspect", command("inspect", _place(path), progress=progress, **given))


def lint(path: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Lint]) -> documents.Lint:
    """Known faults in a checkpoint or artifact; `sound` says whether there are none."""
    return cast("documents.Lint", command("lint", _place(path), progress=progress, **given))


def diff(
    a: Path, b: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Diff]
) -> documents.Diff:
    """Two checkpoints or artifacts as numbers, across dialects and layouts; `failed` counts what `fail_on` names."""
    return cast("documents.Diff", command("diff", _place(a), _place(b), progress=progress, **given))


def validate(
    artifact: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Validate]
) -> documents.Validate:
    """Proves an artifact from its source, or by its own hashes; `valid` says whether it is."""
    return cast("documents.Validate", command("validate", _place(artifact), progress=progress, **given))


def repair(
    source: Path, destination: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Repair]
) -> documents.Repair:
    """Mends what lint finds in a checkpoint and copies every other byte; `mended` says whether nothing is left."""
    return cast("documents.Repair", command("repair", _place(source), _place(destination), progress=progress, **given))


def convert(
    source: Path,
    destination: Path,
    *,
    progress: Optional[ProgressCallback] = None,
    **given: Unpack[options.Convert],
) -> documents.Convert:
    """Converts a checkpoint to a layout, `to="v7"`, or to what another option says."""
    return cast("documents.Convert", command("convert", _place(source), _place(destination), progress=progress, **given))


def prune(
    source: Path, destination: Path, *, progress: Optional[ProgressCallback] = None, **given: Unpack[options.Prune]
) -> documents.Convert:
    """Prunes a checkpoint to 2:4 or 4:8-paired, in its own dialect."""
    return cast("documents.Convert", command("prune", _place(source), _place(destination), progress=progress, **given))


def quantize(
    source: Path,
    destination: Path,
    *,
    progress: Optional[ProgressCallback] = None,
    **given: Unpack[options.Quantize],
) -> documents.Convert:
    """Quantizes BF16, FP16, FP32, FP8 or MXFP4 weights to NVFP4."""
    return cast("documents.Convert", command("quantize", _place(source), _place(destination), progress=progress, **given))


def compress(
    source: Path,
    destination: Path,
    *,
    progress: Optional[ProgressCallback] = None,
    **given: Unpack[options.Compress],
) -> documents.Convert:
    """Collects statistics with a text, chooses weights by them and writes them: `to="v7", text="calibration.txt"`."""
    return cast("documents.Convert", command("compress", _place(source), _place(destination), progress=progress, **given))


def stats(action: str, *arguments: Path, progress: Optional[ProgressCallback] = None, **given: Any) -> dict[str, Any]:
    """Statistics of inputs: `stats("check", file, checkpoint)`, and `inspect`, `collect`, `merge` and `import`."""
    return command(f"stats {action}", *map(_place, arguments), progress=progress, **given)


def has_cuda() -> bool:
    """Whether this library and this machine can run layers on CUDA."""
    return bool(library().has_cuda())


def version() -> str:
    """The version and commit of the library."""
    return cast(str, library().version().decode())


__all__: Sequence[str] = [
    "command",
    "compress",
    "convert",
    "diff",
    "has_cuda",
    "inspect",
    "lint",
    "prune",
    "quantize",
    "stats",
    "validate",
    "version",
]
