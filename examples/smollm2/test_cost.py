#!/usr/bin/env python3
"""Tests cost.py with a program in place of twofour that notes how it is called."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

COST = pathlib.Path(__file__).parent / "cost.py"
PERPLEXITIES = {"bf16": 20, "nvfp4-max": 25, "nvfp4-one-pass": 22, "v7-magnitude": 44, "joint": 21}
PROGRAM = f"""#!{sys.executable}
import json, pathlib, sys
words = sys.argv[1:]
with open("calls", "a") as calls:
  calls.write(json.dumps(words) + "\\n")
if words == ["--version"]:
  print("twofour 1")
elif words[0] == "eval":
  print(json.dumps(dict(perplexity={PERPLEXITIES}[words[1]], perplexity_error=1, predictions=3, device="cpu", windows=2)))
elif words[0] == "convert" and pathlib.Path("fails").exists():
  sys.exit("cannot")
else:
  pathlib.Path(words[2]).mkdir()
  pathlib.Path(words[2], "twofour.json").write_text(words[2])
"""


def tokens_of(path):
  """The bytes of `tokens` and its shape."""
  data = path.read_bytes()
  size, = struct.unpack("<Q", data[:8])
  tensor = json.loads(data[8:8 + size])["tokens"]
  begin, end = tensor["data_offsets"]
  return data[8 + size + begin:8 + size + end], tensor["shape"]


class CostTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.work = pathlib.Path(folder.name)
    (self.work / "bf16").mkdir()
    (self.work / "bf16/model.safetensors").write_text("weights")
    (self.work / "calibration.safetensors").touch()
    header = json.dumps({"__metadata__": {}, "tokens": {"dtype": "I64", "shape": [3, 2], "data_offsets": [0, 48]}}).encode()
    (self.work / "evaluation.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<6q", *range(6)))
    (self.work / "twofour").write_text(PROGRAM)
    (self.work / "twofour").chmod(0o755)

  def cost(self, *words):
    """-> how it ended, and the calls of the program."""
    calls = self.work / "calls"
    calls.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-B", COST, self.work, "--twofour", self.work / "twofour", *words],
                          capture_output=True, text=True)
    made = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
    return done, [call for call in made if call != ["--version"]]

  def test_rows_are_made_and_measured_by_the_windows_that_were_chosen(self):
    done, calls = self.cost("--only", "nvfp4-max", "joint", "guided", "--evaluation", "2", "0", "1", "--limit", "2",
                            "--device", "cuda")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual([call[:3] for call in calls if call[0] != "eval"],
                     [["quantize", "bf16", "nvfp4-max"], ["compress", "bf16", "joint"]])
    self.assertIn("guided: left out", done.stdout)
    for call in calls:
      self.assertEqual("cuda" in call, call[0] != "quantize", call)
    measured = [call for call in calls if call[0] == "eval"]
    self.assertEqual([call[1] for call in measured], ["bf16", "nvfp4-max", "joint"])
    tokens, shape = tokens_of(self.work / measured[0][3])
    self.assertEqual((struct.unpack("<4q", tokens), shape), ((4, 5, 0, 1), [2, 2]))

  def test_it_says_which_rows_are_worse_than_the_best_dense_one(self):
    done, _ = self.cost("--only", "nvfp4-max", "nvfp4-one-pass", "v7-magnitude", "joint")
    self.assertIn("| v7 by magnitude | 3.5 | 44.00 ± 1.00 | 2.20 | worse than dense: 2.00 times its perplexity, 22 % fewer bits |",
                  done.stdout)
    self.assertIn("| 2:4, joint | 3.5 | 21.00 ± 1.00 | 1.05 | no worse than dense: 0.95 times", done.stdout)
    self.assertIn("| NVFP4, each weight for itself | 4.5 | 25.00 ± 1.00 | 1.25 |  |", done.stdout)
    self.assertEqual((self.work / "cost.md").read_text(), done.stdout[done.stdout.index("Evaluation windows"):])
    page = (self.work / "cost.html").read_text()
    self.assertEqual(page.count("<svg"), 5)
    self.assertIn("twofour convert bf16 v7-magnitude --to v7", page)

  def test_figures_are_taken_where_model_and_windows_are_the_same(self):
    self.cost("--only", "nvfp4-max", "joint")
    done, calls = self.cost("--only", "nvfp4-max")
    self.assertEqual(calls, [])
    self.assertIn("2:4, joint", done.stdout)
    (self.work / "joint/twofour.json").write_text("of other statistics")
    done, calls = self.cost("--only", "nvfp4-max")
    self.assertEqual(calls, [])
    self.assertNotIn("2:4, joint", done.stdout)
    _, calls = self.cost("--only", "joint")
    self.assertEqual([call[:2] for call in calls], [["eval", "joint"]])
    _, calls = self.cost("--only", "nvfp4-max", "--evaluation", "1")
    self.assertEqual([call[:2] for call in calls], [["eval", "bf16"], ["eval", "nvfp4-max"]])

  def test_what_fails_ends_it(self):
    done, _ = self.cost("--evaluation", "3")
    self.assertEqual(done.returncode, 1)
    self.assertIn("expected windows 0 to 2 of evaluation.safetensors, found [3]", done.stderr)
    (self.work / "fails").touch()
    done, calls = self.cost("--only", "v7-magnitude")
    self.assertEqual((done.returncode, calls[-1][0]), (1, "convert"))
    self.assertIn("cannot\ntwofour convert failed with exit code 1", done.stderr)


if __name__ == "__main__":
  unittest.main()
