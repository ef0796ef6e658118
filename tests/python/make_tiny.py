#!/usr/bin/env python3
"""Writes artifacts of every family in every layout, and the same in BF16: make_tiny.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import support  # noqa: F401  (the module's path)
from tiny import make_artifact, make_model
from tiny_names import FAMILIES, LAYOUTS

import twofour

for family in FAMILIES:
    folder = Path(sys.argv[1]) / family
    folder.mkdir()
    source = make_model(family, folder)
    for layout in LAYOUTS:
        make_artifact(source, folder / layout, layout)
        twofour.convert(folder / layout, folder / f"{layout}-bf16", to="bf16")
