#!/usr/bin/env python3
"""Writes REFERENCE.md from the comments of twofour.h.

    make_c_reference.py [--check]

With --check it writes nothing and ends with 1 where the file differs, or where the header has something without a comment.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parents[2] / "lib" / "run" / "runtime"
HEAD = """# The C interface, name by name

Made by make_c_reference.py from the comments of [twofour.h](twofour.h). [README.md](README.md#from-c) is the way in, and
[examples/c](../../../examples/c/layer.c) a whole program.

"""


def plain(comment: str) -> str:
    """A comment without its stars."""
    text = re.sub(r"^/\*+|\*+/$", "", comment.strip())
    return " ".join(re.sub(r"^\* ?", "", line.strip()) for line in text.splitlines()).strip()


def wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def name_of(declaration: str) -> str:
    """The name that a declaration declares."""
    define = re.match(r"#define (\w+)", declaration)
    if define:
        return define[1]
    if declaration.startswith("enum"):
        return ", ".join(re.findall(r"\bTWOFOUR_\w+", declaration))
    pointer = re.match(r"typedef int \(\*(\w+)\)", declaration)
    if pointer:
        return pointer[1]
    if declaration.startswith("typedef"):
        return declaration.rstrip(";").split()[-1]
    called = re.search(r"(twofour_\w+)\(", declaration)
    if called is None:
        raise ValueError(f"twofour.h: expected a declaration, found {declaration!r}")
    return called[1]


def fields_of(declaration: str) -> list[tuple[str, str]]:
    """Fields of a struct with their comments, which are behind a field or above it."""
    body = re.search(r"\{(.*)\}", declaration, flags=re.S)
    fields = []
    field = r"(/\*.*?\*/\s*\n\s*)?([^;/{}]+);[ \t]*(/\*.*?\*/)?"
    for above, text, behind in re.findall(field, body[1] if body else "", flags=re.S):
        fields.append((" ".join(text.split()), plain(above or behind)))
    return fields


def entries(header: str) -> list[tuple[str, str]]:
    """Comments and what they are above, in the order of the header."""
    body = header[header.index('extern "C" {') : header.rindex("#ifdef __cplusplus")]
    body = body[body.index("#endif") + len("#endif") :]
    comment = r"(/\*(?:[^*]|\*(?!/))*\*/\n)?"
    kinds = (
        r"typedef struct \{.*?\n\} \w+;|typedef struct \w+ \w+;|typedef int \(\*\w+\)[^;]*;|enum \{[^}]*\};|"
        r"#define [^\n]*|TWOFOUR_API [^;]*;"
    )
    return [(above, text) for above, text in re.findall(rf"^{comment}({kinds})", body, flags=re.M | re.S)]


def make_reference(header: str) -> tuple[str, list[str]]:
    """The page, and what has no comment."""
    lines, bare = [HEAD + wrapped(plain(header[: header.index("*/") + 2])) + "\n"], []
    for above, text in entries(header):
        name = name_of(text)
        if not above:
            bare.append(name)
        declaration = text
        if text.startswith("TWOFOUR_API"):
            declaration = re.sub(r"\s+", " ", text.replace("TWOFOUR_API ", ""))
        lines.append(f"## {name}\n{wrapped(plain(above))}\n")
        if "{" in text and text.startswith("typedef"):
            fields = fields_of(text)
            bare += [f"{name}.{field}" for field, meaning in fields if not meaning]
            lines += ["| field | meaning |", "| --- | --- |", *(f"| `{f}` | {meaning} |" for f, meaning in fields), ""]
        else:
            lines.append(f"```c\n{declaration}\n```\n")
    return "\n".join(lines).rstrip() + "\n", bare


def main() -> int:
    text, bare = make_reference((HERE / "twofour.h").read_text())
    path = HERE / "REFERENCE.md"
    for name in bare:
        print(f"twofour.h: {name}: expected a comment, found none", file=sys.stderr)
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
        return 1 if bare else 0
    differs = not path.exists() or path.read_text() != text
    if differs:
        print(f"{path}: expected what make_c_reference.py writes, found another text; run it", file=sys.stderr)
    return 1 if bare or differs else 0


if __name__ == "__main__":
    sys.exit(main())
