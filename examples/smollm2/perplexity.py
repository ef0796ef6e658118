#!/usr/bin/env python3
"""Perplexity of checkpoints in BF16, by transformers: perplexity.py TOKENS CHECKPOINT ... [--windows N ...]

TOKENS is a safetensors file with `tokens`, I64 [windows, length]. Each window is judged by itself, without a token before it;
the figure is the exponential of the mean negative log-likelihood of all tokens but each window's first.
"""
import argparse
import math

import torch
import transformers
from safetensors.torch import load_file


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("tokens")
  parser.add_argument("checkpoints", nargs="+")
  parser.add_argument("--windows", type=int, nargs="+", help="which of them; default: all")
  parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
  o = parser.parse_args()
  tokens = load_file(o.tokens)["tokens"]
  for folder in o.checkpoints:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(o.device).eval()
    losses = []
    with torch.no_grad():
      for window in o.windows or range(len(tokens)):
        ids = tokens[window:window + 1].to(o.device)
        losses.append(model(input_ids=ids, labels=ids).loss.item())
    print(f"{folder}: perplexity {math.exp(sum(losses) / len(losses)):.5f} over {len(losses)} windows", flush=True)


if __name__ == "__main__":
  main()
