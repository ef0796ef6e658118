#!/usr/bin/env python3
"""Tests peers.py with an interpreter in place of the one that has the packages: it notes how it is called."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PEERS = pathlib.Path(__file__).parent / "peers.py"
# KL of each of three windows of ten predictions, and which ways end how.
KLS = {"twofour": [1, 2, 3], "autoround": [1.1, 2.1, 2.8], "llmcompressor-gptq": [2, 3, 4], "twofour-2of4": [9, 9, 9]}
PROGRAM = f"""#!{sys.executable}
import json, pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--twofour") - 1])
with open(folder / "calls", "a") as calls:
  calls.write(json.dumps(words) + "\\n")
if "--make" in words:
  name = words[words.index("--make") + 1]
  print("what a package says")
  if name.startswith("modelopt"):
    print(json.dumps(dict(not_run="nvidia-modelopt is not installed")))
  elif name == "llmcompressor-rtn":
    sys.exit("out of memory")
  else:
    (folder / "peers" / name).mkdir()
    (folder / "peers" / name / "model.safetensors").write_text(name)
    print(json.dumps(dict(version="7", seconds=12.4, memory=3e9)))
else:
  kls = {KLS}[pathlib.Path(words[words.index("--measure") + 1]).name]
  print(json.dumps(dict(windows=[dict(predictions=10, kl=kl, loss=30, equal=8) for kl in kls])))
"""


class PeersTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.work = pathlib.Path(folder.name).resolve()
    (self.work / "bf16").mkdir()
    for name in ("calibration", "evaluation"):
      (self.work / f"{name}.safetensors").write_text(name)
    (self.work / "python").write_text(PROGRAM)
    (self.work / "python").chmod(0o755)

  def peers(self, *words):
    """-> how it ended, and what the processes that it started were told."""
    calls = self.work / "calls"
    calls.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-B", PEERS, self.work, "--twofour", self.work / "python", "--python",
                           self.work / "python", *words], capture_output=True, text=True)
    made = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
    return done, [call[call.index("--limit") + 2:] for call in made]

  def test_the_table_is_by_kl_calls_a_tie_a_tie_and_invents_nothing(self):
    done, _ = self.peers("--only", *KLS, "modelopt-awq", "llmcompressor-rtn")
    self.assertEqual(done.returncode, 0, done.stderr)
    lines = [line.split("|")[1:-1] for line in (self.work / "peers.md").read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    self.assertEqual([line[:2] for line in cells if "---" not in line], [
        ["Dense NVFP4, 4.5 bits", "KL"],
        ["twofour: compress, group by group", "0.2000"],
        ["auto_round: iters 200", "0.2000 (tie with the first)"],
        ["llmcompressor: GPTQ", "0.3000"],
        ["llmcompressor: RTN", "not run: it ended with exit code 1"],
        ["modelopt: awq_lite", "not run: nvidia-modelopt is not installed"],
        ["2:4 of all linears, 3.5 bits", "KL"],
        ["twofour: compress --pattern 2:4", "0.9000"],
    ])
    self.assertEqual(cells[2][2:], ["20.086", "80.0", "12", "3.00", "7"])
    self.assertIn("(30 predictions)", done.stdout)

  def test_figures_are_taken_where_weights_and_windows_are_the_same(self):
    _, calls = self.peers("--only", "twofour")
    self.assertEqual(calls, [["--make", "twofour"], ["--measure", str(self.work / "peers/twofour")]])
    done, calls = self.peers("--only", "twofour")
    self.assertEqual(calls, [])
    self.assertIn("| twofour: compress, group by group | 0.2000 |", done.stdout)
    _, calls = self.peers("--only", "twofour", "--limit", "2")
    self.assertEqual([call[0] for call in calls], ["--measure"])
    (self.work / "calibration.safetensors").write_text("other")
    _, calls = self.peers("--only", "twofour")
    self.assertEqual([call[0] for call in calls], ["--make", "--measure"])


if __name__ == "__main__":
  unittest.main()
