"""What the tests share: paths, and safetensors files read by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
#: The program, whose answers those of the module are held against.
PROGRAM = os.environ.get("TWOFOUR", str(ROOT / "build" / "release" / "tools" / "twofour"))

sys.path.insert(0, str(ROOT / "tools" / "python"))


def stored(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors of a safetensors file: type, shape, bytes."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The program's answer."""
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)


def without_times(document: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if key != "seconds"}
    return [without_times(value) for value in document] if isinstance(document, list) else document


class Scratch(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
