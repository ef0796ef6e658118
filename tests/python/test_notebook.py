"""The notebook runs with NumPy alone, and has what its cells print."""

from __future__ import annotations

import json
import unittest

from notebook import differences
from support import ROOT

NOTEBOOK = ROOT / "examples" / "python" / "twofour.ipynb"


class Notebook(unittest.TestCase):
    def test_cells_print_what_is_stored(self) -> None:
        self.assertEqual(differences(NOTEBOOK), [])

    def test_each_cell_of_code_has_an_output(self) -> None:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                self.assertTrue(cell["outputs"], "".join(cell["source"]))


if __name__ == "__main__":
    unittest.main()
