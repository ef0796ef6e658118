"""Reads tools/README.md and tools/JSON.md: commands with their arguments and options, documents with their fields."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Optional

#: What a function call has no use for.
LEFT_OUT = {"help", "help_all", "json", "quiet", "verbose", "sarif"}
#: Commands that print no document, or that the library refuses.
NO_FUNCTIONS = {"run", "completion", "man", "help"}


@dataclass(frozen=True)
class Option:
    """An option or a positional argument."""

    name: str  #: in Python: "max_shard_size"
    value: str  #: "SIZE", "{v7,g8}"; empty for a flag
    meaning: str
    required: bool = False

    @property
    def choices(self) -> list[str]:
        return self.value[1:-1].split(",") if self.value.startswith("{") else []

    @property
    def is_repeated(self) -> bool:
        return "may be given again" in self.meaning or "Commas separate" in self.meaning


@dataclass(frozen=True)
class Command:
    name: str
    summary: str
    example: list[str]  #: words of a command line, without the program
    arguments: list[Option]
    options: list[Option]
    notes: str  #: paragraphs behind the list, Markdown


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Document:
    name: str  #: "convert --dry-run"
    is_top: bool  #: printed by itself, not a part of others
    text: str  #: before the table
    fields: list[Field]


def plain(text: str) -> str:
    """Markdown's text without escapes."""
    return re.sub(r"\\([|<*_\[])", r"\1", text)


def sections(text: str, levels: str) -> dict[str, str]:
    """The text below each heading of these levels, by heading."""
    found = {}
    parts = re.split(rf"^({levels}) (.+)$", text, flags=re.M)
    for heading, body in zip(parts[2::3], parts[3::3]):
        found[heading.replace("\\", "")] = body
    return found


def items(body: str) -> list[tuple[str, str]]:
    """Names and meanings of a section's first list: "- `--jobs N`: Number of threads"."""
    first = re.search(r"^- .*\n(?:- .*\n)*", body, flags=re.M)
    return re.findall(r"^- (`[^`]+`|\[[^\]]+\]\(#[^)]+\)): (.*)$", first[0], flags=re.M) if first else []


def option_of(item: tuple[str, str]) -> Optional[Option]:
    match = re.match(r"`(?:-\w, )?--([\w-]+)(?: (.+))?`", item[0])
    if not match:
        return None
    meaning = plain(item[1])
    return Option(match[1].replace("-", "_"), match[2] or "", meaning, bool(re.search(r"\(required[;)]", meaning)))


def read_commands(readme: str) -> list[Command]:
    """The commands that functions call, in the order of the page."""
    groups = {title: items(body) for title, body in sections(readme, "###").items()}
    everywhere = items(readme.split("Every command has these options.")[1])
    found = []
    for name, body in sections(readme, "##").items():
        usage = re.search(rf"^`twofour {re.escape(name)} (.+?)`, for example `twofour (.+)`$", body, flags=re.M)
        if not usage or name in NO_FUNCTIONS:
            continue
        own = items(body)
        listed: list[tuple[str, str]] = []
        for item in own:
            group = re.match(r"\[(.+)\]\(#", item[0])
            names = re.findall(r"`(--[\w-]+)`", item[1]) if group else []
            listed += (
                [one for name in names for one in groups[group[1]] if f"{name}`" in one[0] or f"{name} " in one[0]]
                if group
                else [item]
            )
        options: dict[str, Option] = {}
        for item in listed + everywhere:
            option = option_of(item)
            if option and option.name not in LEFT_OUT:
                options.setdefault(option.name, option)
        places = re.findall(r"(\[?)([A-Z_]+)\]?", usage[1].replace("[OPTIONS]", ""))
        meanings = [item for item in own if not item[0].startswith(("`-", "["))]
        arguments = [
            Option(word, text.strip("`"), plain(meaning), not bracket)
            for (bracket, word), (text, meaning) in zip(places, meanings)
        ]
        found.append(
            Command(
                name,
                plain(body.strip().splitlines()[0]).rstrip("."),
                shlex.split(plain(usage[2]).split(" > ")[0]),
                arguments,
                list(options.values()),
                notes_of(body),
            )
        )
    return found


def notes_of(body: str) -> str:
    """The paragraphs behind a section's first list."""
    first = re.search(r"^- .*\n(?:- .*\n)*", body, flags=re.M)
    return body[first.end() :].strip() if first else ""


def read_documents(page: str) -> dict[str, Document]:
    """The documents and the shapes of their parts."""
    top = set(sections(page, "##"))
    found = {}
    for name, body in sections(page, "##+").items():
        lines = body.splitlines()
        begin = next((i for i, line in enumerate(lines) if re.match(r"\| -+ \|", line)), None)
        if begin is None:
            continue
        fields = []
        for line in lines[begin + 1 :]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            fields.append(Field(cells[0].strip("`"), cells[1], plain(cells[2])))
        text = " ".join(line.strip() for line in lines[: begin - 1] if line.strip())
        found[name] = Document(name, name in top, text, fields)
    return found


def documents_of(command: Command, documents: dict[str, Document]) -> list[Document]:
    """The documents of a command: its own, or the one that says that the command prints the same; then variants."""
    own = [d for name, d in documents.items() if d.is_top and re.match(rf"{command.name}( |$)", name)]
    if command.name not in documents:
        own = [d for d in documents.values() if d.is_top and f"`{command.name}`" in d.text and "same" in d.text] + own
        dry_run = documents.get(f"{own[0].name} --dry-run") if own else None
        if dry_run and any(option.name == "dry_run" for option in command.options):
            own.append(dry_run)
    return own
