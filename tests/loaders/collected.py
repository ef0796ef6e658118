#!/usr/bin/env python3
"""Holds `twofour stats collect` against examples/statistics/collect.py, which sees the products that transformers computes.

  collected.py TWOFOUR [CASE ...]

Small models of every family (those of logits.py), with windows held out. Of each linear the sums must be equal to a relative
1e-5 (both add float32, in other orders), counts exactly, and so must the hashes of structure and weights. Where blocks have a
backward pass, so must guided sums and Fisher matrices, to 1e-4.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import logits

COLLECT = pathlib.Path(__file__).parents[2] / "examples/statistics/collect.py"


def square(sums):
  """Sums [K, K], or their upper triangle row by row, whole and in double."""
  if sums.dim() == 2:
    return sums.double()
  k = int(((8 * len(sums) + 1) ** 0.5 - 1) / 2)
  whole = torch.zeros(k, k, dtype=torch.float64)
  i, j = torch.triu_indices(k, k)
  whole[i, j] = sums.double()
  return whole + whole.T - torch.diag(whole.diagonal())


class File:
  """A statistics file, and which entry serves each linear."""

  def __init__(self, path):
    with safe_open(path, "pt") as f:
      self.tensors = {name: f.get_tensor(name) for name in f.keys()}
      self.metadata = f.metadata()
    groups, self.served = json.loads(self.metadata["groups"]), {}
    for name, count in self.tensors.items():
      entry = name.removesuffix(".count")
      if entry == name or entry.startswith("heldout.") or not int(count):
        continue
      for linear in groups.get(entry, [entry]):
        if linear not in self.served or linear == entry:
          self.served[linear] = entry


def compare(name, theirs, ours, bound=1e-5):
  problems = [f"{key} differs" for key in ("structure", "weights", "tokens") if theirs.metadata[key] != ours.metadata[key]]
  if set(theirs.served) != set(ours.served):
    problems.append(f"linears served differ: {sorted(set(theirs.served) ^ set(ours.served))[:3]}")
  worst = 0.0
  for linear in set(theirs.served) & set(ours.served):
    for prefix in ("", "heldout."):
      a, b = prefix + theirs.served[linear], prefix + ours.served[linear]
      if f"{a}.hessian" not in theirs.tensors or prefix and bound > 1e-5:
        continue  # with gradients, held-out entries are grouped in other ways
      if int(theirs.tensors[f"{a}.count"]) != int(ours.tensors[f"{b}.count"]):
        problems.append(f"{prefix}{linear}: count differs")
        continue
      for leaf in ("hessian", "fisher_hessian"):
        if f"{a}.{leaf}" not in theirs.tensors:
          continue
        x, y = square(theirs.tensors[f"{a}.{leaf}"]), square(ours.tensors[f"{b}.{leaf}"])
        worst = max(worst, ((x - y).norm() / x.norm()).item())
  for key, value in theirs.tensors.items():
    if key.endswith(".saliency"):
      worst = max(worst, ((value - ours.tensors[key]).norm() / value.norm()).item())
  if worst > bound:
    problems.append(f"sums differ by {worst:.2g}")
  print(name, f"{len(theirs.served)} linears, largest relative difference {worst:.2g}", *problems, sep="; ")
  return not problems


def main():
  program, wanted, same = sys.argv[1], sys.argv[2:], True
  for name, (family, options) in logits.cases(False).items():
    if wanted and name not in wanted:
      continue
    with tempfile.TemporaryDirectory() as folder:
      folder = pathlib.Path(folder)
      (folder / "model").mkdir()
      logits.make_model(family, options, folder / "model")
      tokens = torch.randint(3, options["vocab_size"], (6, 64), generator=torch.Generator().manual_seed(1))
      save_file({"tokens": tokens}, folder / "tokens")
      subprocess.run([sys.executable, COLLECT, folder / "model", folder / "theirs", "--tokens", folder / "tokens", "--device",
                      "cpu", "--heldout", "2", "--saliency"], check=True, capture_output=True)
      subprocess.run([program, "stats", "collect", folder / "model", "-o", folder / "ours", "--tokens", folder / "tokens",
                      "--held-out", "2", "-q"], check=True)
      same = compare(name, File(folder / "theirs"), File(folder / "ours")) and same
      if logits.is_hybrid(options):
        continue
      for weighting, words in (("plain", []), ("guided", ["--guided"])):
        subprocess.run([sys.executable, COLLECT, folder / "model", folder / "theirs", "--tokens", folder / "tokens", "--device",
                        "cpu", "--fisher", "--weighting", weighting], check=True, capture_output=True)
        subprocess.run([program, "stats", "collect", folder / "model", "-o", folder / "ours", "--tokens", folder / "tokens",
                        "--fisher", *words, "--force", "-q"], check=True)
        same = compare(f"{name}, Fisher, {weighting}", File(folder / "theirs"), File(folder / "ours"), 1e-4) and same
  sys.exit(0 if same else 1)


if __name__ == "__main__":
  main()
