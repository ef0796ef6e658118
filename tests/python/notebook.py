#!/usr/bin/env python3
"""Runs the cells of a notebook in order, in an empty folder, and compares what they print with what it has.

    notebook.py [--write] NOTEBOOK

Ends with 1 where a cell fails or prints something else. With --write the notebook gets what they print.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import support  # noqa: F401  (the module's path)


def outputs_of(notebook: dict[str, Any]) -> list[list[str]]:
    """The lines that each cell of code prints."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(notebook["cells"]):
                if cell["cell_type"] != "code":
                    continue
                text = io.StringIO()
                with contextlib.redirect_stdout(text):
                    exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
                printed.append(text.getvalue().splitlines(keepends=True))
        finally:
            os.chdir(before)
    return printed


def differences(path: Path, write: bool = False) -> list[str]:
    """What cells print other than the notebook has. What cells of torch print depends on the machine."""
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    wrong = []
    for number, (cell, lines) in enumerate(zip(cells, outputs_of(notebook)), 1):
        found = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        if cell["outputs"] != found and "torch" not in cell["metadata"].get("tags", []):
            stored = "".join("".join(output["text"]) for output in cell["outputs"])
            wrong.append(f"{path}: cell of code {number}: expected\n{stored}found\n{''.join(lines)}"
                         "If that is right: notebook.py --write")
        if write:
            cell["outputs"], cell["execution_count"] = found, number
    if write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return wrong


def main() -> int:
    write = "--write" in sys.argv[1:]
    path = Path(sys.argv[-1]).resolve()
    wrong = differences(path, write)
    print("\n".join(wrong) if wrong and not write else f"{path}: all cells ran")
    return 1 if wrong and not write else 0


if __name__ == "__main__":
    sys.exit(main())
