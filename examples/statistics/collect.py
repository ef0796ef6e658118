#!/usr/bin/env python3
"""Collects the statistics of a model that transformers runs, for `twofour quantize --stats` and `prune --stats`.

  collect.py MODEL OUT --tokens FILE [--weighting plain|guided] [--fisher] [--heldout N] [--per-expert] [--saliency]
             [--token-weights FILE] [--device DEVICE] [--batch N]
  collect.py MODEL OUT --tokens FILE --sequential [--pattern 2:4] [--pruned GLOB ...] [--twofour BINARY] ...

FILE holds `tokens`, I32 or I64 [windows, length], in safetensors. Linears with one input share an entry; the gate and up of
all experts of a layer share one, each expert's down has its own. `guided` weights tokens by the root of the squared
gradient of the loss in a linear's outputs, so each matrix has its own entry. `--sequential` collects from a model whose
earlier linears are compressed already, which twofour does in between. README.md describes the file.
"""
import argparse

import torch
from safetensors.torch import load_file, save_file

import sequential
from checkpoint import STACK, Checkpoint
from products import Products, experts_one_by_one
from sums import Entry, save_entries


class Collector:
  """The entries of a pass over the tokens."""

  def __init__(self, checkpoint, guided=False, fisher=False, per_expert=False):
    self.checkpoint, self.guided, self.fisher, self.per_expert = checkpoint, guided, fisher, per_expert
    self.entries, self.last = {}, None

  def key(self, product):
    """What products share an entry, and the modules that it serves."""
    members, stack = self.checkpoint.members, STACK.match(product.weight)
    if stack and product.expert is not None and stack[2] != "down_proj" and not self.per_expert:
      key = stack[1] + "." + stack[2]  # of all experts of the layer, also of those without tokens
      count = 0 if key in self.entries else self.checkpoint.count_experts(product.weight)
      return key, [m for e in range(count) for m in members(product.weight, e)]
    return (product.weight, product.expert), members(product.weight, product.expert)

  def entry(self, key, x, members):
    entry = self.entries.get(key)
    if entry is None:
      entry = self.entries[key] = Entry(x.shape[1], x.device, self.fisher)
    entry.add_members(members)
    return entry

  def see(self, product):
    key, members = self.key(product)
    if not members and key not in self.entries:
      return
    weighted = self.guided or self.fisher
    if product.same_input and not weighted and self.last is not None:
      self.entries[self.last].add_members(members)  # the input was counted with the product before
      return
    self.last = key
    x = product.x.detach().float()
    entry = self.entry(key, x, members)
    entry.see_input(x)
    if not self.guided:
      entry.add(x)
    if weighted:
      product.y.register_hook(lambda gradient: self.see_gradient(entry, x, gradient))

  def see_gradient(self, entry, x, gradient):
    e = squared(gradient)
    if self.guided:
      entry.add(x, e.sqrt())
    if self.fisher:
      entry.add_fisher(x, e)

  def finish(self):
    """The entries, with one for each layer's experts that saw no token: the sums of the others."""
    seen = [e for e in self.entries.values() if e.count]
    blocks = {}
    for (weight, expert), e in ((k, e) for k, e in self.entries.items() if isinstance(k, tuple) and k[1] is not None):
      blocks.setdefault(weight, {})[expert] = e
    for weight, experts in blocks.items():
      unseen = [m for e in range(self.checkpoint.count_experts(weight)) if e not in experts
                for m in self.checkpoint.members(weight, e)]
      if unseen and not self.per_expert:
        first = next(iter(experts.values()))
        shared = Entry(first.k, first.hessian.device, self.fisher)
        block, leaf = STACK.match(weight.removesuffix(".weight")).groups()
        shared.name, shared.members = f"{self.checkpoint.block_in_files(block)}.{leaf}", unseen
        for e in experts.values():
          shared.add_entry(e)
        seen.append(shared)
    return seen


class Saliency:
  """Of each block's experts the sum over their tokens of |share y|: what REAP (arXiv 2510.13999) takes the mean of."""

  def __init__(self, checkpoint):
    self.checkpoint, self.sums = checkpoint, {}

  def see(self, product, scaled):
    block = STACK.match(product.weight)
    if block is None or block[2] != "down_proj":
      return
    count = self.checkpoint.count_experts(product.weight)
    sums = self.sums.setdefault(self.checkpoint.block_in_files(block[1]), torch.zeros(count, device=scaled.device, dtype=torch.float64))
    sums[product.expert] += scaled.detach().double().norm(dim=-1).sum()

  def tensors(self):
    return {f"{block}.saliency": sums.float() for block, sums in self.sums.items()}


class TokenWeights:
  """The weights of tokens in each matrix, the roots of their squared gradients: [windows, length], of mean 1 over the
  tokens that reach it, 0 for others."""

  def __init__(self, checkpoint, shape):
    self.checkpoint, self.shape, self.first = checkpoint, shape, 0
    self.weights, self.reached = {}, {}  # by the modules of a product

  def see(self, product):
    members, tokens = tuple(self.checkpoint.members(product.weight, product.expert)), product.tokens
    if not members:
      return
    if tokens is None and product.expert is not None:
      raise SystemExit(f"{product.weight}: which tokens expert {product.expert} sees is not known: weights of tokens need a "
                       "model whose experts pick rows of their input one by one")
    first = self.first
    def see_gradient(gradient):
      w = squared(gradient).sqrt()
      own = self.weights.setdefault(members, torch.zeros(self.shape.numel(), device=w.device))
      own[torch.arange(len(w), device=w.device) + first if tokens is None else tokens + first] = w
      self.reached[members] = self.reached.get(members, 0) + len(w)
    product.y.register_hook(see_gradient)

  def finish(self):
    out = {}
    for members, w in self.weights.items():
      w = (w * (self.reached[members] / w.sum(dtype=torch.float64))).float().view(self.shape)
      out |= {m: w for m in members}
    return out


def squared(gradient):
  """The mean over outputs of the squared gradient, a number a token."""
  return gradient.detach().float().square().mean(-1).flatten()


def run(model, tokens, products, device, batch, backward, before_batch=lambda first: None):
  """Runs windows of tokens [W, T] through the model."""
  if backward:  # gradients of activations need a start
    start = model.get_input_embeddings().register_forward_hook(lambda module, args, y: y.requires_grad_())
  for first in range(0, len(tokens), batch):
    window = tokens[first:first + batch].to(device)
    before_batch(first * tokens.shape[1])
    with products, torch.set_grad_enabled(backward):
      logits = model(input_ids=window, use_cache=False).logits
    if backward:
      loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), window[:, 1:].flatten(),
                                               reduction="sum")
      loss.backward()
  if backward:
    start.remove()


def load(folder, device, dtype):
  import transformers
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
  for p in model.parameters():
    p.requires_grad_(False)
  return model


def collect_token_weights(model, checkpoint, tokens, o):
  weights = TokenWeights(checkpoint, tokens.shape)
  run(model, tokens, Products(model, weights.see), o.device, o.batch, True,
      lambda first: setattr(weights, "first", first))
  return weights.finish()


def collect(model, checkpoint, tokens, kept, o):
  """Writes the statistics of one pass, or of one a model."""
  guided = o.weighting == "guided"
  collector, heldout = Collector(checkpoint, guided, o.fisher, o.per_expert), Collector(checkpoint, per_expert=o.per_expert)
  saliency = Saliency(checkpoint)
  run(model, tokens, Products(model, collector.see, o.saliency and saliency.see), o.device, o.batch, guided or o.fisher)
  run(model, kept, Products(model, heldout.see), o.device, o.batch, False)
  return save_entries(o.out, collector.finish(), heldout.entries.values(), saliency.tensors(), **metadata_of(checkpoint, tokens, o))


def metadata_of(checkpoint, tokens, o):
  return {"weights": checkpoint.final_norm(), "tokens": str(tokens.numel()), "text": o.text, "weighting": o.weighting}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("model")
  parser.add_argument("out")
  parser.add_argument("--tokens", required=True)
  parser.add_argument("--text", default="", help="name of the text, for the file")
  parser.add_argument("--weighting", choices=("plain", "guided"), default="plain")
  parser.add_argument("--fisher", action="store_true", help="fisher_hessian as well, for budgets")
  parser.add_argument("--heldout", type=int, default=0, help="windows at the end that are kept apart")
  parser.add_argument("--per-expert", action="store_true", help="an entry for gate and up of each expert")
  parser.add_argument("--saliency", action="store_true", help="what experts add to their layers, for twofour drop")
  parser.add_argument("--token-weights", metavar="FILE", help="write the weights of guided tokens here")
  parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--batch", type=int, default=4, help="windows at once")
  sequential.add_options(parser)
  o = parser.parse_args()
  tokens = load_file(o.tokens)["tokens"].to(torch.int64)
  tokens, kept = tokens[:len(tokens) - o.heldout], tokens[len(tokens) - o.heldout:]
  sequential.check_options(parser, o)
  model, checkpoint = load(o.model, o.device, getattr(torch, o.dtype)), Checkpoint(o.model)
  checkpoint.follow(model)
  with experts_one_by_one(model):
    weights = {}
    if o.token_weights or o.sequential and o.weighting == "guided":
      weights = collect_token_weights(model, checkpoint, tokens, o)
    if o.token_weights:
      save_file({f"{m}.token_weights": w.cpu().clone() for m, w in weights.items()}, o.token_weights)
    if o.sequential:
      seen = sequential.collect(model, checkpoint, tokens, kept, weights if o.weighting == "guided" else {},
                                metadata_of(checkpoint, tokens, o), o)
    else:
      seen = collect(model, checkpoint, tokens, kept, o)
  print(f"{seen[0]} entries of {seen[1]} linears, {tokens.numel()} tokens")


if __name__ == "__main__":
  main()
