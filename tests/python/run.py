#!/usr/bin/env python3
"""The tests of the module, with the program in TWOFOUR and the library in TWOFOUR_LIBRARY.

    run.py [NAME ...]

Without names those that need NumPy alone; 77 (skipped) where it is not installed.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    if importlib.util.find_spec("numpy") is None:
        print("skipped: no numpy")
        return 77
    # A shell ignores Ctrl-C in what it starts in the background, and so would the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, str(HERE))
    names = sys.argv[1:] or ["test_module", "test_calls", "test_objects", "test_misuse", "test_runtime", "test_notebook"]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    return 0 if unittest.TextTestRunner(verbosity=1).run(tests).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
