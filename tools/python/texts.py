"""Names and texts of the program as the module has them."""

from __future__ import annotations

import importlib
import keyword
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Optional

from pages import Command, Option

HERE = Path(__file__).parent
#: Names of arguments in Python, by their names at the prompt; "COMMAND NAME" for one command alone.
ARGUMENTS = {
    "SRC": "source", "DST": "destination", "validate DST": "artifact", "merge DST": "artifact", "DIR": "artifact",
    "OUT": "destination", "stats PATH": "arguments",
}  # fmt: skip
WIDTH = 118


def python_words(text: str, command: Optional[Command] = None) -> str:
    """The module's translation of the program's words. Imports two files of the package, not the package."""
    if "words" not in sys.modules:
        sys.modules["words"] = types.ModuleType("words")
        sys.modules["words"].__path__ = [str(HERE / "twofour")]
    text = str(importlib.import_module("words._words").python_words(text, command.name if command else ""))
    # A letter alone may be an article.
    for argument in command.arguments if command else ():
        if command and len(argument.name) > 1 and not argument.choices:
            text = re.sub(rf"\b{argument.name}\b", argument_name(command.name, argument), text)
    return text


def camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", name.replace("NAME", "Name")))


def identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def argument_name(command: str, argument: Option) -> str:
    return ARGUMENTS.get(f"{command} {argument.name}", ARGUMENTS.get(argument.name, argument.name.lower()))


def paragraph(text: str, indent: int, hang: int = 4) -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
