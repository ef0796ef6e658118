"""The program's words in Python's: --max-shard-size is max_shard_size, --force is force=True."""

from __future__ import annotations

import keyword
import re
from typing import Iterable

from ._names import ARGUMENTS, CHOICES, COMMANDS, FLAGS, OPTIONS, VALUES

_COMMAND = "|".join(COMMANDS)
_OPTION = r"(?<![\w./-])--([a-z][a-z0-9-]*)"
_VALUE = r"(?: ([A-Z][A-Z/]*|I/N)\b)?"
#: "twofour validate OUT --source BASE", "twofour recipes", "convert --dry-run".
_CALL = re.compile(
    rf"\btwofour ({_COMMAND})\b((?: [A-Z]+\b| --[a-z][a-z0-9-]*{_VALUE})*)|"
    rf"(?<![\w./-])({_COMMAND})((?: --[a-z][a-z0-9-]*)+)"
)


#: Options that are flags of every command that has them.
_FLAGS = {
    option for option in OPTIONS if any(option in flags for flags in FLAGS.values()) and option not in VALUES
}


def _name(option: str) -> str:
    """The name of an option's argument: for_ of --for, which is a word of Python."""
    name = option.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def _argument(command: str, option: str, value: str) -> str:
    name = _name(option)
    return f"{name}=True" if option in FLAGS.get(command, ()) else f"{name}={value or '...'}"


def _call(match: re.Match[str]) -> str:
    command, rest = (match[1], match[2]) if match[1] else (match[4], match[5])
    words = re.findall(rf" --([a-z][a-z0-9-]*){_VALUE}| ([A-Z]+)\b", rest)
    arguments = ", ".join(place or _argument(command, option, value) for option, value, place in words)
    return f"{'twofour.' if match[1] else ''}{command}({arguments})"


def _option(match: re.Match[str], flags: Iterable[str]) -> str:
    option, value = match[1], match[2]
    if option not in OPTIONS:
        return match[0]
    name, rest = _name(option), match[0][len(option) + 2 :]
    if option in flags:
        return f"{name}=True{rest}"
    if value and re.fullmatch(r"\d+", value):
        return f"{name}={value}"
    return f'{name}="{value}"' if value and value in CHOICES.get(option, ()) else name + rest


def python_words(text: str, command: str = "", given: Iterable[str] = ()) -> str:
    """A text of the program, about a command, for who calls functions. What a caller has `given` stays as it is."""
    kept = sorted({word for word in given if "--" in word or "twofour " in word}, key=len, reverse=True)
    if kept:
        parts = re.split(f"({'|'.join(map(re.escape, kept))})", text)
        return "".join(part if i % 2 else python_words(part, command) for i, part in enumerate(parts))
    place, colon, rest = text.partition(": ")
    if colon and place in ARGUMENTS.get(command, ()):
        text = f"{ARGUMENTS[command][place]}: {rest}"
    text = re.sub(rf"\bSee twofour ({_COMMAND}) --help\.", r"See help(twofour.\1).", text)
    text = text.replace("See twofour --help.", "See help(twofour).")
    text = re.sub(rf"\btwofour help ({_COMMAND})\b", r"help(twofour.\1)", text)
    if text.startswith("unknown option "):
        return re.sub(_OPTION, lambda match: match[1].replace("-", "_"), text)
    flags = FLAGS.get(command, _FLAGS)
    text = _CALL.sub(_call, text)
    return re.sub(rf"{_OPTION}(?:[ =]([\w:.-]+))?", lambda match: _option(match, flags), text)
