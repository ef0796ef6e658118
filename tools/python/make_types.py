#!/usr/bin/env python3
"""Writes twofour/_options.py and twofour/_documents.py from tools/README.md and tools/JSON.md.

    make_types.py [--check]

With --check it writes nothing and ends with 1 where a file differs.
"""

from __future__ import annotations

import keyword
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = ("inspect", "lint", "diff", "validate", "repair", "convert", "prune", "quantize", "compress")
#: What a function call has no use for.
LEFT_OUT = {"help", "json", "quiet", "verbose"}
HEAD = '''"""{summary} Made by make_types.py from {source}."""

from __future__ import annotations

from typing import {typing}

'''


def sections(text: str, levels: str) -> dict[str, str]:
    """The text below each heading of these levels, by heading."""
    found = {}
    parts = re.split(rf"^({levels}) (.+)$", text, flags=re.M)
    for heading, body in zip(parts[2::3], parts[3::3]):
        found[heading.replace("\\", "")] = body
    return found


def rows(body: str) -> list[list[str]]:
    """Cells of a section's first table, without its head."""
    lines = [line for line in body.splitlines()]
    begin = next((i for i, line in enumerate(lines) if re.match(r"\| -+ \|", line)), len(lines))
    table = []
    for line in lines[begin + 1 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table


def items(body: str) -> list[tuple[str, str]]:
    """Names and meanings of a section's first list: "- `--jobs N`: Number of threads"."""
    first = re.search(r"^- .*\n(?:- .*\n)*", body, flags=re.M)
    return re.findall(r"^- (`[^`]+`|\[[^\]]+\]\(#[^)]+\)): (.*)$", first[0], flags=re.M) if first else []


def option_items(readme: str, command: str) -> list[tuple[str, str]]:
    """A command's options: its own, those of groups that its list names, those of every command."""
    groups = {title: items(body) for title, body in sections(readme, "###").items()}
    found = []
    for item in items(sections(readme, "##")[command]):
        group = re.match(r"\[(.+)\]\(#", item[0])
        names = re.findall(r"`(--[\w-]+)`", item[1]) if group else []
        found += [one for one in groups[group[1]] if option_name(one) in names] if group else [item]
    return found + items(readme.split("Every command has these options.")[1])


def option_name(item: tuple[str, str]) -> str:
    match = re.match(r"`(?:-\w, )?(--[\w-]+)", item[0])
    return match[1] if match else ""


def field(key: str, kind: str, meaning: str) -> str:
    """A line of a class, with its meaning behind it where there is room, else before it."""
    plain = re.sub(r"\\(.)", r"\1", meaning)
    line = f"    {key}: {kind}"
    if len(line) + len(plain) < 114:
        return f"{line}  #: {plain}\n" if plain else f"{line}\n"
    before = textwrap.fill(plain, 116, initial_indent="    #: ", subsequent_indent="    #: ")
    return f"{before}\n{line}\n"


def camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", name.replace("NAME", "Name")))


def option_type(value: str, description: str) -> str:
    if not value:
        return "bool"
    if "may be given again" in description or "Commas separate" in description:
        return "Union[Value, Sequence[Value]]"
    return "Value"


def make_options(readme: str) -> str:
    text = HEAD.format(
        summary="Options of the commands, by their names in Python.",
        source="tools/README.md",
        typing="TYPE_CHECKING, Sequence, TypedDict, Union",
    )
    text += "if TYPE_CHECKING:\n    import os\n\n    Value = Union[str, int, float, os.PathLike[str]]\n"
    for command in COMMANDS:
        text += f"\n\nclass {camel(command)}(TypedDict, total=False):\n"
        text += f'    """Options of `twofour {command}`."""\n\n'
        seen = set()
        for cells in option_items(readme, command):
            match = re.match(r"`(?:-\w, )?--([\w-]+)(?: (.+))?`", cells[0])
            if not match or match[1] in LEFT_OUT or match[1] in seen:
                continue
            seen.add(match[1])
            name = match[1].replace("-", "_")
            text += field(name, option_type(match[2] or "", cells[1]), cells[1])
    return text


def field_type(text: str, shapes: set[str]) -> str:
    plain = text.replace(", optional", "").strip()
    simple = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "any": "Any"}
    if plain.endswith(" or null"):
        made = f"Optional[{field_type(plain[: -len(' or null')], shapes)}]"
    elif plain.startswith("list of "):
        made = f"list[{field_type(plain[len('list of ') :], shapes)}]"
    elif plain.startswith("map of "):
        made = f"dict[str, {field_type(plain[len('map of ') :], shapes)}]"
    elif plain in simple:
        made = simple[plain]
    elif plain in shapes:
        made = camel(plain)
    else:
        raise ValueError(f"tools/JSON.md: expected a type, found {text!r}")
    return f"NotRequired[{made}]" if ", optional" in text else made


def make_documents(schemas: str) -> str:
    text = HEAD.format(
        summary="What commands return.",
        source="tools/JSON.md",
        typing="TYPE_CHECKING, Any, Optional, TypedDict",
    )
    text += "if TYPE_CHECKING:\n    from typing_extensions import NotRequired\n"
    found = {name: rows(body) for name, body in sections(schemas, "##+").items()}
    top = set(sections(schemas, "##"))
    # The documents of COMMANDS with the shapes that these have; prune, quantize and compress print what convert does.
    used = [name for name in COMMANDS if name in found]
    for name in used:
        for cells in found[name]:
            shape = re.sub(r"(list|map) of |, optional| or null", "", cells[1]).strip()
            if shape in found and shape not in used:
                used.append(shape)
    for name in used:
        fields = found[name]
        typed = [(cells[0].strip("`"), field_type(cells[1], set(found)), cells[2]) for cells in fields]
        if name in top:
            typed.insert(0, ("schema_version", "int", ""))
        if any(keyword.iskeyword(key) for key, _, _ in typed):
            items = ", ".join(f'"{key}": "{kind}"' for key, kind, _ in typed)
            text += f'\n\n#: {name}\n{camel(name)} = TypedDict("{camel(name)}", {{{items}}})\n'
            continue
        text += f'\n\nclass {camel(name)}(TypedDict):\n    """{name}"""\n\n'
        for key, kind, meaning in typed:
            text += field(key, kind, meaning)
    return text


def main() -> int:
    files = {
        "_options.py": make_options((HERE.parent / "README.md").read_text()),
        "_documents.py": make_documents((HERE.parent / "JSON.md").read_text()),
    }
    differ = [name for name, text in files.items() if not (HERE / "twofour" / name).exists()
              or (HERE / "twofour" / name).read_text() != text]  # fmt: skip
    if "--check" not in sys.argv[1:]:
        for name in differ:
            (HERE / "twofour" / name).write_text(files[name])
        return 0
    for name in differ:
        print(f"twofour/{name}: expected what make_types.py writes, found another text; run it", file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
