#!/usr/bin/env python3
"""Deals SmolLM2's MLPs into eight experts of half their width, two for a token, and trains them; writes Qwen3-MoE's names.

  make_moe.py DENSE TOKENS OUT [--seconds 600] [--evaluation FILE]

DENSE is what ../smollm2/make_checkpoint.py --variant bf16 makes, TOKENS what manuals.py makes. All weights are trained by AdamW on
the text and on what the dense model says of it. Prints figures as JSON, OUT.json holds them, too.
"""
import argparse
import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import model

LENGTH = 1024
WARM_UP, LEAST_RATE = 0.03, 0.02  # of the time; of the rate
BALANCE = 0.01  # the weight of the experts' balance
PIECE = 4096  # tokens whose logits are there at once


class Windows:
  """Random windows of a text, each with the token behind it; -> I64 [count, length + 1]"""

  def __init__(self, path, length, seed, device):
    tokens = np.load(path)
    if tokens.dtype != np.uint16 or tokens.ndim != 1 or len(tokens) <= length:
      raise SystemExit(f"{path}: expected uint16 [tokens], more than {length}, found {tokens.dtype} {tokens.shape}")
    self.tokens, self.length = torch.from_numpy(tokens.astype(np.int32)).to(device), length
    self.generator = torch.Generator().manual_seed(seed)

  def take(self, count):
    first = torch.randint(len(self.tokens) - self.length, (count, 1), generator=self.generator)
    places = first + torch.arange(self.length + 1)
    return self.tokens[places.to(self.tokens.device)].long()


def losses(student, teacher, batch, from_text):
  """Adds gradients up; -> cross entropy and KL divergence of the batch, and the experts' balance, as tensors."""
  inputs, targets = batch[:, :-1], batch[:, 1:].flatten()
  with torch.no_grad():
    truth = teacher(inputs).flatten(0, 1)
  hidden = student(inputs).flatten(0, 1)
  leaf = hidden.detach().requires_grad_()
  sums = torch.zeros(2, device=batch.device)
  for first in range(0, len(targets), PIECE):
    piece = slice(first, first + PIECE)
    with torch.no_grad():
      expected = teacher.head(truth[piece]).log_softmax(-1)
    found = student.head(leaf[piece]).log_softmax(-1)
    text = F.nll_loss(found, targets[piece], reduction="sum")
    divergence = F.kl_div(found, expected, reduction="sum", log_target=True)
    ((from_text * text + (1 - from_text) * divergence) / len(targets)).backward()
    sums += torch.stack((text.detach(), divergence.detach()))
  balance = torch.stack([layer.mlp.balance for layer in student.layers]).mean()
  torch.autograd.backward([hidden, BALANCE * balance], [leaf.grad, torch.ones_like(balance)])
  return torch.cat((sums / len(targets), balance.detach()[None]))


def rate(done):
  """The share of the learning rate after a share of the time."""
  wave = (1 + math.cos(math.pi * min(done, 1))) / 2
  return min(done / WARM_UP, 1) * (LEAST_RATE + (1 - LEAST_RATE) * wave)


def train(student, teacher, windows, seconds, most_steps, count, learning_rate, from_text):
  """Trains for so long, or so many steps; -> figures of the run, with the losses every few seconds."""
  vectors = [p for p in student.parameters() if p.ndim == 1]
  matrices = [p for p in student.parameters() if p.ndim > 1]
  groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
  is_cuda = matrices[0].is_cuda
  optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=is_cuda)
  history, steps, begin, shown = [], 0, time.monotonic(), 0
  while (passed := time.monotonic() - begin) < seconds and steps < most_steps:
    for group in optimizer.param_groups:
      group["lr"] = learning_rate * rate(max(passed / seconds, steps / most_steps))
    figures = losses(student, teacher, windows.take(count), from_text)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    steps += 1
    text, divergence, balance = figures.tolist()  # waits for the device, so that time is time
    if not math.isfinite(text):
      raise SystemExit(f"step {steps}: the loss is {text}")
    if steps in (1, most_steps) or passed - shown >= max(seconds / 40, 1):
      shown = passed
      history.append({"seconds": round(passed, 1), "steps": steps, "cross_entropy": text, "divergence": divergence,
                      "balance": balance})
      print(json.dumps(history[-1]), flush=True)
  return {"seconds": round(time.monotonic() - begin, 1), "steps": steps, "tokens": steps * count * windows.length,
          "history": history}


@torch.no_grad()
def perplexity(some, windows):
  """windows I64 [W, T] -> perplexity of each token but the first of a window"""
  total = 0.0
  for window in windows.split(1):
    found = some.head(some(window)[0, :-1]).log_softmax(-1)
    total += F.nll_loss(found, window[0, 1:], reduction="sum").item()
  return math.exp(total / windows[:, 1:].numel())


@torch.no_grad()
def shares(moe, windows):
  """-> the share of each expert of each layer in what the router chooses, [layers][EXPERTS]"""
  moe(windows)
  return [[round(s, 4) for s in layer.mlp.shares.tolist()] for layer in moe.layers]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("dense", metavar="DENSE", type=pathlib.Path)
  parser.add_argument("tokens", metavar="TOKENS", type=pathlib.Path)
  parser.add_argument("out", metavar="OUT", type=pathlib.Path, help="folder to make; must not exist")
  parser.add_argument("--seconds", type=float, default=600, help="of training (default: %(default)s)")
  parser.add_argument("--steps", type=int, default=10**9, help="at most (default: as many as the seconds allow)")
  parser.add_argument("--evaluation", type=pathlib.Path, help="windows of tokens, as ../smollm2/texts.py makes them")
  parser.add_argument("--layers", type=int, help="the first layers alone, to try the script (default: all)")
  parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a window (default: %(default)s)")
  parser.add_argument("--windows", type=int, default=32, help="windows of a step (default: %(default)s)")
  parser.add_argument("--rate", type=float, default=4e-4, help="the largest learning rate (default: %(default)s)")
  parser.add_argument("--from-text", type=float, default=0.5, metavar="SHARE",
                      help="of the loss; the rest is the divergence from the dense model (default: %(default)s)")
  parser.add_argument("--seed", type=int, default=1)
  o = parser.parse_args()
  if o.out.exists():
    parser.error(f"{o.out} exists")
  device = "cuda" if torch.cuda.is_available() else "cpu"
  teacher = model.load_dense(o.dense, o.layers, torch.bfloat16 if device == "cuda" else torch.float32).to(device)
  windows = Windows(o.tokens, o.length, o.seed, device)
  student = model.deal(teacher, windows.take(min(o.windows, 8))[:, :-1], o.seed)
  figures = {"seed": o.seed, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
  evaluation = load_file(o.evaluation)["tokens"].long().to(device) if o.evaluation else None
  if evaluation is not None:
    figures |= {"dense_perplexity": perplexity(teacher, evaluation), "untrained_perplexity": perplexity(student, evaluation)}
    print(json.dumps(figures), flush=True)
  figures |= train(student, teacher, windows, o.seconds, o.steps, o.windows, o.rate, o.from_text)
  figures["sha256"] = model.save(student, o.dense, o.out)
  if evaluation is not None:
    with torch.no_grad():
      for p in student.parameters():  # as they are written
        p.copy_(p.to(torch.bfloat16))
    figures |= {"perplexity": perplexity(student, evaluation), "shares": shares(student, evaluation)}
  if device == "cuda":
    figures["device_bytes"] = torch.cuda.max_memory_allocated()
  o.out.with_name(o.out.name + ".json").write_text(json.dumps(figures, indent=1) + "\n")
  print(json.dumps({key: value for key, value in figures.items() if key != "history"}))


if __name__ == "__main__":
  main()
