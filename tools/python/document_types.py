"""The types of what commands return, twofour/documents.py."""

from __future__ import annotations

import keyword
import re

from pages import Command, Document, documents_of
from texts import camel, paragraph, python_words, wrapped

HEAD = '''"""What commands return. Made by make_types.py from tools/JSON.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired

'''


def field_type(text: str, shapes: set[str]) -> str:
    given = text.replace(", optional", "").strip()
    simple = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "any": "Any"}
    if given.endswith(" or null"):
        made = f"Optional[{field_type(given[: -len(' or null')], shapes)}]"
    elif given.startswith("list of "):
        made = f"list[{field_type(given[len('list of ') :], shapes)}]"
    elif given.startswith("map of "):
        made = f"dict[str, {field_type(given[len('map of ') :], shapes)}]"
    elif given in simple:
        made = simple[given]
    elif given in shapes:
        made = camel(given)
    else:
        raise ValueError(f"tools/JSON.md: expected a type, found {text!r}")
    return f"NotRequired[{made}]" if ", optional" in text else made


def make_documents(commands: list[Command], documents: dict[str, Document]) -> str:
    text = HEAD
    used = list(dict.fromkeys(d.name for command in commands for d in documents_of(command, documents)))
    for name in used:
        for one in documents[name].fields:
            shape = re.sub(r"(list|map) of |, optional| or null", "", one.type).strip()
            if shape in documents and shape not in used:
                used.append(shape)
    for name in used:
        document = documents[name]
        command = next((c for c in commands if c.name == name.split()[0]), None)
        typed = [
            (one.name, field_type(one.type, set(documents)), python_words(one.meaning, command))
            for one in document.fields
        ]
        if document.is_top:
            typed.insert(0, ("schema_version", "int", "1; counts up when a field changes or goes"))
        what = "The document" if document.is_top else "A part of documents:"
        lines = "".join(paragraph(f"{key}: {meaning}" if meaning else key, 8) + "\n" for key, _, meaning in typed)
        doc = f'"""{what} `{name}`.\n\n    Keys:\n{lines}    """\n'
        if any(keyword.iskeyword(key) for key, _, _ in typed):
            pairs = ", ".join(f'"{key}": "{kind}"' for key, kind, _ in typed)
            given = "\n".join(wrapped(f"{pairs},", 4))
            text += f'\n\n{camel(name)} = TypedDict("{camel(name)}", {{\n{given}\n}})  # fmt: skip\n'
            text += f"{camel(name)}.__doc__ = {doc}"
            continue
        text += f"\n\nclass {camel(name)}(TypedDict):\n    {doc}\n"
        text += "".join(f"    {key}: {kind}\n" for key, kind, _ in typed)
    return text
