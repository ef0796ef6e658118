#!/usr/bin/env python3
"""Prints REFERENCE.md: the signatures, docstrings and types of the module. make_types.py writes it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any, Iterator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import twofour  # noqa: E402

HEAD = """# The Python module, name by name

Made by make_types.py from signatures and docstrings, which `help()` shows, too. [README.md](README.md) is the way in.
The results of commands are [at the end](#documents).

## Index
"""


#: Classes that a caller makes; others come from functions and methods.
MADE = ("Artifact", "Model", "Tokenizer")


def shown(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def signature(name: str, function: Any, is_method: bool = False) -> str:
    """`name(a: int, *, b: bool = False) -> str`, on several lines where it is long."""
    parts, stars = [], {"*"}
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:] if is_method else parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            stars.clear()
        if parameter.kind is parameter.KEYWORD_ONLY and stars:
            parts.append(stars.pop())
        is_many, is_named = parameter.kind is parameter.VAR_POSITIONAL, parameter.kind is parameter.VAR_KEYWORD
        text = ("*" if is_many else "**" if is_named else "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {shown(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
    result = inspect.signature(function).return_annotation
    end = "" if result is inspect.Signature.empty else f" -> {shown(result)}"
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def block(signature: str, doc: str) -> str:
    return f"```text\n{signature}\n\n{doc}\n```\n" if doc else f"```text\n{signature}\n```\n"


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public members of a class that it or a private base defines."""
    seen = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "twofour":
            continue
        for name, value in vars(base).items():
            is_public = not name.startswith("_") or name in ("__getitem__", "__call__")
            if is_public and name not in seen:
                seen.add(name)
                yield name, value


def class_text(name: str, kind: type) -> str:
    bases = ", ".join(base.__name__ for base in kind.__bases__)
    head = f"class {name}" + (f"({bases})" if bases and issubclass(kind, Exception) else "")
    if dataclasses.is_dataclass(kind):
        fields = [f for f in dataclasses.fields(kind) if not f.name.startswith("_")]
        head += "".join(f"\n    {f.name}: {f.type}" for f in fields)
    elif name in MADE:
        head += "\n" + signature(name, vars(kind)["__init__"], True)
    text = f"### {name}\n{block(head, inspect.getdoc(kind) or '')}"
    if issubclass(kind, Exception):
        return text
    fields_of = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member, value in sorted(members(kind), key=lambda one: one[0]):
        if member in fields_of:
            continue
        doc = inspect.getdoc(getattr(value, "__func__", value)) or ""
        if isinstance(value, property):
            result = shown(inspect.signature(value.fget).return_annotation) if value.fget else ""
            text += block(f"{name}.{member}: {result}", doc)
        elif isinstance(value, classmethod):
            text += block(signature(f"{name}.{member}", value.__func__, True), doc)
        elif inspect.isfunction(value):
            label = {"__getitem__": f"{name.lower()}[...]: ", "__call__": name.lower()}.get(member)
            text += block(signature(label or f"{name}.{member}", value, True), doc)
    return text


def document_text(name: str, kind: Any) -> str:
    lines = [f"    {key}: {getattr(value, '__forward_arg__', value)}" for key, value in kind.__annotations__.items()]
    return f"### {name}\n" + block("\n".join([f"class {name}(TypedDict)", *lines]), inspect.getdoc(kind) or "")


def main() -> None:
    public = {name: getattr(twofour, name) for name in twofour.__all__}
    functions = [name for name in twofour._functions.__all__]
    others = [n for n, v in public.items() if inspect.isfunction(v) and n not in functions]
    errors = [n for n, v in public.items() if inspect.isclass(v) and issubclass(v, Exception)]
    classes = [n for n, v in public.items() if inspect.isclass(v) and n not in errors]
    documents = {n: v for n, v in vars(twofour.documents).items() if isinstance(v, type(twofour.documents.Lint))}
    documents.pop("TypedDict", None)
    groups = {"Commands": functions, "Other functions": others, "Classes": classes, "Errors": errors, "Documents": documents}
    text = HEAD
    seen: dict[str, int] = {}  # a second heading of a name has an anchor with -1
    for title, listed in groups.items():
        links = []
        for name in listed:
            anchor = name.lower()
            seen[anchor] = seen.get(anchor, -1) + 1
            links.append(f"[{name}](#{anchor}{f'-{seen[anchor]}' if seen[anchor] else ''})")
        text += f"- [{title}](#{title.lower().replace(' ', '-')}): {', '.join(links)}\n"
    for title, names in (("Commands", functions), ("Other functions", others)):
        parts = [f"### {n}\n{block(signature(n, public[n]), inspect.getdoc(public[n]) or '')}" for n in names]
        text += f"\n## {title}\n" + "\n".join(parts)
    for title, names in (("Classes", classes), ("Errors", errors)):
        text += f"\n## {title}\n" + "\n".join(class_text(n, public[n]) for n in names)
    text += "\n## Documents\n" + "\n".join(document_text(n, v) for n, v in documents.items())
    print(text, end="")


if __name__ == "__main__":
    main()
