#!/usr/bin/env python3
"""The speed of a prompt of 1024 tokens of SmolLM2 on two cores, over that of transformers in float32 in the same run.

  prompt_speed.py TWOFOUR CHECKPOINT [--rounds N] [--least RATIO]

Both take turns. Ours is `eval` on two windows more than one, so that the program's start does not count; it computes the loss of
each token, too. The figure is the ratio of the medians. Ends with 1 where it is below --least.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import transformers
from safetensors.torch import save_file

LENGTH, WINDOWS = 1024, 3


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("twofour")
  parser.add_argument("checkpoint")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--least", type=float, default=0.5)
  o = parser.parse_args()
  torch.set_num_threads(2)
  model = transformers.AutoModelForCausalLM.from_pretrained(o.checkpoint, dtype=torch.float32).eval()
  torch.manual_seed(0)
  tokens = torch.randint(0, model.config.vocab_size, (WINDOWS, LENGTH))
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "tokens.safetensors")
    save_file({"tokens": tokens}, file)

    def ours(windows):
      words = [o.twofour, "eval", o.checkpoint, "--tokens", str(file), "--limit", str(windows), "-j", "2", "-q", "--json"]
      return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["seconds"]

    def theirs():
      start = time.monotonic()
      with torch.no_grad():
        model(input_ids=tokens[:1], use_cache=True)
      return time.monotonic() - start

    theirs()
    one, all_of_them, torch_seconds = [], [], []
    for _ in range(o.rounds):
      one.append(ours(1))
      all_of_them.append(ours(WINDOWS))
      torch_seconds.append(theirs())
  own = (statistics.median(all_of_them) - statistics.median(one)) / (WINDOWS - 1)
  other = statistics.median(torch_seconds)
  print(f"prompt of {LENGTH} tokens: {own:.2f} s, transformers {other:.2f} s, speed {other / own:.2f} of theirs")
  return 0 if other / own >= o.least else 1


if __name__ == "__main__":
  raise SystemExit(main())
