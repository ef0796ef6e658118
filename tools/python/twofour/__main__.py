"""`python -m twofour`: the program that the wheel installed, with the same arguments."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Iterator


def _places() -> Iterator[Path]:
    """The files that may be the program, the environment's first."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", f"{os.name}_user"))
    yield Path(__file__).parent.parent / "bin"  # pip install --target


def program() -> Path:
    """The path of the program `twofour`. Raises FileNotFoundError where it is not installed."""
    for folder in _places():
        if os.access(folder / "twofour", os.X_OK):
            return folder / "twofour"
    raise FileNotFoundError(
        "twofour: expected the program beside Python's scripts, found none; "
        "install the wheel: pip install ./twofour-*.whl"
    )


def main() -> None:
    """Becomes the program."""
    try:
        path = program()
    except FileNotFoundError as error:
        sys.exit(str(error))
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
