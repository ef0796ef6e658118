#!/usr/bin/env python3
"""Writes what of the module follows from tools/README.md and tools/JSON.md: twofour/_names.py, _functions.py and
documents.py, and REFERENCE.md from the docstrings of all of it.

    make_types.py [--check]

With --check it writes nothing and ends with 1 where a file differs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from document_types import make_documents
from pages import Command, Document, Option, documents_of, plain, read_commands, read_documents
from texts import WIDTH, argument_name, camel, identifier, paragraph, python_words, wrapped

HERE = Path(__file__).parent


# Names


def make_names(commands: list[Command]) -> str:
    options, values, choices = set(), set(), dict[str, set[str]]()
    for command in commands:
        for option in command.options:
            word = option.name.replace("_", "-")
            options.add(word)
            if option.value:
                values.add(word)
            choices.setdefault(word, set()).update(option.choices)
    lines = [
        '"""Names of the program\'s commands and options. Made by make_types.py from tools/README.md."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    flags = {c.name: {o.name.replace("_", "-") for o in c.options if not o.value} for c in commands}
    for name, words in (("COMMANDS", {c.name for c in commands}), ("OPTIONS", options), ("VALUES", values)):
        listed = ", ".join(f'"{word}"' for word in sorted(words))
        lines += wrapped(f"{name} = {{{listed}}}", 0)
        lines[-1] += "  # fmt: skip"
    arguments = {c.name: {a.name: argument_name(c.name, a) for a in c.arguments} for c in commands}
    lines += ["ARGUMENTS = {"]
    for key in sorted(arguments):
        listed = ", ".join(f'"{word}": "{name}"' for word, name in arguments[key].items())
        lines += wrapped(f'"{key}": {{{listed}}},', 4)
    lines += ["}  # fmt: skip"]
    for name, groups in (("FLAGS", flags), ("CHOICES", choices)):
        lines += [f"{name} = {{"]
        for key in sorted(groups):
            listed = ", ".join(f'"{word}"' for word in sorted(groups[key]))
            lines += wrapped(f'"{key}": {{{listed}}},', 4) if listed else []
        lines += ["}  # fmt: skip"]
    return "\n".join(lines) + "\n"


# Functions

FUNCTIONS_HEAD = '''"""The program's commands as functions. Made by make_types.py from tools/README.md and tools/JSON.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Sequence, Union, cast, overload

from ._commands import call, explained

if TYPE_CHECKING:
    from . import documents
    from ._commands import Path, ProgressCallback
'''
RAISES = """Raises:
    NotFoundError: a file or directory is missing (also a FileNotFoundError).
    ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
    ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
    Error: all else that the program reports with exit code 2, and the base of these.
    Interrupted: `progress` returned True.
    KeyboardInterrupt: Ctrl-C, once the command has tidied up."""
PROGRESS = (
    "called with phase, bytes done and bytes in all, on the calling thread: before the command, about 20 times a "
    "second, and after it. The first phase is \"starting\", of 0 bytes in all; each later one has its own. True stops the "
    "command. An exception of it comes out after the command has tidied up. tools/python/README.md shows it with tqdm."
)


def basic_type(option: Option) -> str:
    if option.choices and "cuda" not in option.choices:
        words = ", ".join(f'"{word}"' for word in option.choices if word != "auto" or option.name != "device")
        return "str" if option.name == "device" else f"Literal[{words}]"
    if option.value in ("FILE", "DIRECTORY", "PATH") or option.value.startswith(("SRC", "DST")):
        return "Path"
    if option.value == "N":
        return "float" if re.search(r"\(\d+ to \S*e[+]", option.meaning) else "int"
    return {"X": "float", "SHARE": "float", "SIZE": "Union[int, str]", "N|FILE": "Union[int, Path]"}.get(
        option.value, "str"
    )


def option_type(option: Option) -> str:
    if not option.value:
        return "bool"
    kind = basic_type(option)
    return f"Union[{kind}, Sequence[{kind}]]" if option.is_repeated else kind


def argument_type(argument: Option) -> str:
    return basic_type(argument) if argument.choices else "Path"


def shown_type(option: Option) -> str:
    """The type of a value in words: its choices, or a name."""
    if not option.value:
        return "True or False"
    kind = {"Path": "path", "Union[int, str]": "int or str", "Union[int, Path]": "int or path"}.get(
        basic_type(option), basic_type(option)
    )
    if kind.startswith("Literal"):
        kind = kind[len("Literal[") : -1]
    if option.name == "device":
        kind = ", ".join(f'"{word}"' for word in option.choices)
    return kind + (" or a list of such" if option.is_repeated else "")


def meaning_of(option: Option) -> str:
    text = option.meaning.replace("; may be given again)", ")").replace(" (may be given again)", "")
    text = re.sub(r" \(required(?:; (.*))?\)$", lambda match: f" ({match[1]})" if match[1] else "", text)
    return text


def example_of(command: Command) -> str:
    """The example of the page as a call."""
    flags = {option.name for option in command.options if not option.value}
    words, given, rest = command.example[1:], [], []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            rest.append(f'"{word}"')
            continue
        name = "output" if word == "-o" else word.lstrip("-").replace("-", "_")
        if name in flags:
            given.append(f"{name}=True")
            continue
        value = words.pop(0)
        option = next(o for o in command.options if o.name == name)
        is_number = re.fullmatch(r"[0-9.]+", value) and re.search("int|float", option_type(option))
        given.append(f"{name}={value}" if is_number else f'{name}="{value}"')
    return f"twofour.{command.name}({', '.join(rest + given)})"


def notes_of(command: Command) -> str:
    """The notes of the page for a docstring."""
    lines = []
    for line in python_words(plain(command.notes), command).splitlines():
        if line.startswith("```"):
            continue
        item = re.match(r"- `([^`]+)`: (.*)$", line)
        text = f"{item[1]}: {item[2]}" if item else line
        lines.append(text if line.startswith("  ") else paragraph(text, 4 if item else 0, 4 if item else 0))
    return "\n".join(lines)


def returns_of(command: Command, documents: list[Document]) -> str:
    main = documents[0]
    lines = ["Returns:", paragraph(f"A documents.{camel(main.name)}, the document `{main.name}` of tools/JSON.md:", 4)]
    for field in main.fields:
        meaning = python_words(field.meaning, command)
        lines.append(paragraph(f"{field.name} ({field.type}){': ' if meaning else ''}{meaning}", 8))
    for other in documents[1:]:
        lines.append(paragraph(f"A documents.{camel(other.name)} for {python_words(other.name, command)}.", 4))
    return "\n".join(lines)


def docstring(command: Command, documents: list[Document]) -> str:
    parts = [f"{python_words(command.summary, command)}.", f"Example: {example_of(command)}"]
    lines = ["Args:"]
    for argument in command.arguments:
        name = argument_name(command.name, argument)
        kind = shown_type(argument) if argument.choices else "path"
        optional = "" if argument.required else ", or None"
        lines.append(paragraph(f"{name} ({kind}{optional}): {python_words(meaning_of(argument), command)}", 4))
    for option in command.options:
        text = f"{identifier(option.name)} ({shown_type(option)}): {python_words(meaning_of(option), command)}"
        if not option.value:
            text += " (default: False)"
        lines.append(paragraph(text, 4))
    lines.append(paragraph(f"progress (function): {PROGRESS}", 4))
    parts.append("\n".join(lines))
    if documents:
        parts.append(returns_of(command, documents))
    parts.append(RAISES)
    if command.notes:
        parts.append("Notes:\n" + textwrap.indent(notes_of(command), "    ", lambda line: bool(line.strip())))
    text = "\n\n".join(parts).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    body = textwrap.indent(text, "    ", lambda line: bool(line.strip())).strip()
    return f'    """{body}\n    """\n'


def handed(name: str) -> str:
    """An option as an argument of a call. A name that is a word of Python cannot stand before "="."""
    argument = identifier(name)
    return f"{name}={argument}" if argument == name else f'**{{"{name}":{argument}}}'


def function(command: Command, documents: list[Document]) -> str:
    variadic = command.name == "stats"
    parameters, passed = [], []
    for argument in command.arguments:
        name = argument_name(command.name, argument)
        kind = argument_type(argument)
        if variadic and name == "arguments":
            parameters.append(f"*{name}: {kind}")
            passed.append(f"*{name}")
        else:
            parameters.append(f"{name}: {kind}" if argument.required else f"{name}: Optional[{kind}] = None")
            passed.append(name)
    required = [option for option in command.options if option.required and not variadic]
    parameters += [f"{identifier(option.name)}: {option_type(option)}" for option in required]
    if not variadic:
        parameters.append("*")
    for option in command.options:
        if option in required:
            continue
        kind = option_type(option)
        default = f": {kind} = False" if kind == "bool" else f": Optional[{kind}] = None"
        parameters.append(identifier(option.name) + default)
    parameters.append("progress: Optional[ProgressCallback] = None")
    result = f"documents.{camel(documents[0].name)}" if documents and not variadic else "dict[str, Any]"
    text = ""
    named = f"{command.name} NAME"
    if any(d.name == named for d in documents):
        common = "".join(f", {p}" for p in parameters[len(command.arguments) :])
        name, kind = passed[0], argument_type(command.arguments[0])
        for head, shown in ((f"{name}: {kind}", camel(named)), (f"{name}: None = None", camel(command.name))):
            text += f"\n\n@overload\ndef {command.name}(\n    {head}{common},\n) -> documents.{shown}: ...\n"
        result = "Any"
    if variadic:  # a result for each action
        common = "".join(f", {p}" for p in parameters[1:])
        for document in documents:
            action = document.name.split()[-1]
            if document.name != f"{command.name} {action}" or action not in command.arguments[0].choices:
                continue
            actions = [action, *re.findall(rf"`{command.name} (\w+)`", document.text)]
            head = f"{passed[0]}: Literal[" + ", ".join(f'"{one}"' for one in actions) + "]"
            shown = camel(document.name)
            text += f"\n\n@overload\ndef {command.name}(\n    {head}{common},\n) -> documents.{shown}: ...\n"
        result = "Any"
    text += f"{'' if text else chr(10)}{chr(10) if not text else ''}@explained\ndef {command.name}(\n"
    text += "".join(f"    {parameter},\n" for parameter in parameters) + f") -> {result}:\n"
    text += docstring(command, documents)
    given = "".join(f", {handed(option.name)}" for option in command.options)
    places = "".join(f", {place}" for place in passed)
    name_text = f'"{command.name}"'
    values = textwrap.fill(
        f"{name_text}{places}, progress=progress{given},", WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8
    )
    if result == "Any":
        return f"{text}    return call(\n{values}\n    )  # fmt: skip\n"
    return f'{text}    return cast("{result}", call(\n{values}\n    ))  # fmt: skip\n'


def make_functions(commands: list[Command], documents: dict[str, Document]) -> str:
    text = FUNCTIONS_HEAD
    for command in commands:
        text += function(command, documents_of(command, documents))
    listed = "".join(f'    "{command.name}",\n' for command in commands)
    return f"{text}\n\n__all__ = [\n{listed}]\n"


def differs(path: Path, text: str, is_check: bool) -> bool:
    """Whether a file has another text; it is written then, unless it is only checked."""
    if path.exists() and path.read_text() == text:
        return False
    if not is_check:
        path.write_text(text)
    return True


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    commands = read_commands((HERE.parent / "README.md").read_text())
    documents = read_documents((HERE.parent / "JSON.md").read_text())
    package = HERE / "twofour"
    wrong = []
    # The names come first: the words of the functions' docstrings follow from them.
    if differs(package / "_names.py", make_names(commands), is_check):
        wrong.append("twofour/_names.py")
    if differs(package / "_functions.py", make_functions(commands, documents), is_check):
        wrong.append("twofour/_functions.py")
    if differs(package / "documents.py", make_documents(commands, documents), is_check):
        wrong.append("twofour/documents.py")
    # Another process, which imports what was written.
    reference = subprocess.run([sys.executable, "-B", str(HERE / "make_reference.py")], capture_output=True, text=True)
    if reference.returncode != 0:
        print(reference.stderr, file=sys.stderr)
        return 1
    if differs(HERE / "REFERENCE.md", reference.stdout, is_check):
        wrong.append("REFERENCE.md")
    for name in wrong if is_check else []:
        print(f"tools/python/{name}: expected what make_types.py writes, found another text; run it", file=sys.stderr)
    return 1 if wrong and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
