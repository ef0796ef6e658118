#!/usr/bin/env python3
"""Collects plain statistics while vLLM runs a model: vllm_worker.py MODEL OUT --tokens FILE [--tensor-parallel N]

FILE holds `tokens`, I64 [windows, length], in safetensors. Each window is a prompt, of which vLLM computes the prefill.
The hook sees vLLM's linear layers, split over ranks or not, and the inputs of fused experts: their gate and up share an
entry. What enters an expert's down stays inside a fused kernel; collect.py sees that.
"""
import argparse

import torch

from checkpoint import Checkpoint
from sums import Entry, save_entries

# vLLM's names of what it multiplies as one, and the checkpoint's.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj"),
         "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_b", "in_proj_a")}


def inputs_of(module):
  """What a layer of vLLM multiplies: "columns" whole inputs, "rows" a rank's part of them, "experts"; None: nothing."""
  for cls in type(module).__mro__:
    if cls.__name__ in ("ReplicatedLinear", "ColumnParallelLinear"):
      return "columns"
    if cls.__name__ == "RowParallelLinear":
      return "rows" if module.tp_size > 1 else "columns"
    if cls.__name__ == "FusedMoE":
      return "experts"
  return None


class Sums:
  """Sums of x x' by the name of a layer, on one rank."""

  def __init__(self, model):
    self.entries, self.hooks = {}, []
    for name, module in model.named_modules():
      kind = inputs_of(module)
      if kind:
        self.hooks.append(module.register_forward_pre_hook(
            lambda module, args, kwargs, name=name, kind=kind: self.see(name, kind, module, args, kwargs), with_kwargs=True))

  def see(self, name, kind, module, args, kwargs):
    x = args[0] if args else next(v for k, v in kwargs.items() if k in ("input_", "x", "hidden_states"))
    x = x.detach().flatten(0, -2).float()
    if name not in self.entries:
      self.entries[name] = kind, Entry(x.shape[1], x.device), getattr(module, "top_k", 1)
    entry = self.entries[name][1]
    entry.see_input(x)
    entry.add(x)

  def stop(self):
    """-> by layer: kind, count, sum [K, K], amax, experts of a token."""
    for hook in self.hooks:
      hook.remove()
    return {name: (kind, e.count, e.hessian.cpu(), e.amax, top_k) for name, (kind, e, top_k) in self.entries.items()}


class Worker:
  """For worker_extension_cls of vllm.LLM: a worker's own methods."""

  def start_statistics(self):
    self.statistics = Sums(self.model_runner.model)

  def stop_statistics(self):
    return self.statistics.stop()


def members_of(name, kind, checkpoint):
  """Modules of the checkpoint that a layer of vLLM multiplies with."""
  block, _, leaf = name.rpartition(".")
  if kind == "experts":
    count = checkpoint.count_experts(name + ".gate_up_proj")
    return [m for e in range(count) for m in checkpoint.members(name + ".gate_up_proj", e)]
  names = [f"{block}.{part}" for part in FUSED.get(leaf, ())]
  return [m for m in names if f"{m}.weight" in checkpoint.shapes] or checkpoint.members(name)


def entries_of(ranks, checkpoint):
  """Entries of what all ranks saw; where they share out the inputs, a block of the Hessian a rank."""
  entries = []
  for name, (kind, count, _, _, top_k) in ranks[0].items():
    members = members_of(name, kind, checkpoint)
    if not members or not count:
      continue
    sums = torch.stack([rank[name][2] for rank in ranks]) if kind == "rows" else ranks[0][name][2]
    entry = Entry(sums.shape[-1] * (len(ranks) if kind == "rows" else 1), "cpu", sums=sums * top_k)
    entry.add_members(members)
    entry.count = entry.total = entry.squares = count * top_k
    entry.amax = max(rank[name][3] for rank in ranks)
    entries.append(entry)
  return entries


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("model")
  parser.add_argument("out")
  parser.add_argument("--tokens", required=True)
  parser.add_argument("--text", default="", help="name of the text, for the file")
  parser.add_argument("--tensor-parallel", type=int, default=1)
  o = parser.parse_args()
  from safetensors.torch import load_file
  from vllm import LLM, SamplingParams
  tokens = load_file(o.tokens)["tokens"]
  llm = LLM(o.model, worker_extension_cls="vllm_worker.Worker", enforce_eager=True, enable_prefix_caching=False,
            tensor_parallel_size=o.tensor_parallel, max_model_len=tokens.shape[1] + 1)
  llm.collective_rpc("start_statistics")
  llm.generate([{"prompt_token_ids": window.tolist()} for window in tokens], SamplingParams(max_tokens=1))
  checkpoint = Checkpoint(o.model)
  seen = save_entries(o.out, entries_of(llm.collective_rpc("stop_statistics"), checkpoint), weights=checkpoint.final_norm(),
                      tokens=str(tokens.numel()), text=o.text, weighting="plain")
  print(f"{seen[0]} entries of {seen[1]} linears, {tokens.numel()} tokens")


if __name__ == "__main__":
  main()
