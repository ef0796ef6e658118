#!/usr/bin/env python3
"""Runs the cells of a notebook in order, in an empty folder: notebook.py NOTEBOOK. Ends with 1 where one fails."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import support  # noqa: F401  (the module's path)


def main() -> None:
    notebook = json.loads(Path(sys.argv[1]).read_text())
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        os.chdir("/")
    print(f"{sys.argv[1]}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells ran")


if __name__ == "__main__":
    main()
