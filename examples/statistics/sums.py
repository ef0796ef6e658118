"""Sums over tokens that a statistics file holds, added up while a model runs."""
import json
import math

import torch
import xxhash
from safetensors.torch import save_file


class Entry:
  """The sums of one input, or of one matrix where tokens are weighted.

  hessian: sum of w x x' [K, K], w 1 or a token's weight before it is normalized; total, squares: sums of w and w^2;
  fisher: sum of e x x' [K, K]; count: tokens; amax: the largest |x|. A hessian may be its diagonal blocks, [K / B, B, B].
  """

  def __init__(self, k, device, fisher=False, sums=None):
    self.k, self.count, self.total, self.squares, self.amax = k, 0, 0.0, 0.0, 0.0
    self.members = []
    self.hessian = torch.zeros(k, k, device=device) if sums is None else sums
    self.fisher = torch.zeros(k, k, device=device) if fisher else None

  def add_members(self, members):
    self.members += [m for m in members if m not in self.members]

  def see_input(self, x):
    """x [T, K]: counts its tokens."""
    self.count += len(x)
    if len(x):
      self.amax = max(self.amax, x.abs().max().item())

  def add(self, x, weights=None):
    """Adds tokens x [T, K], float32, of weights [T]."""
    self.hessian.addmm_((x if weights is None else x * weights[:, None]).T, x)
    if weights is None:
      self.total += len(x)
      self.squares += len(x)
    else:
      self.total += weights.sum(dtype=torch.float64).item()
      self.squares += weights.square().sum(dtype=torch.float64).item()

  def add_fisher(self, x, e):
    self.fisher.addmm_((x * e[:, None]).T, x)

  def add_entry(self, other):
    """The sums of both, their weights as they are."""
    self.count += other.count
    self.total += other.total
    self.squares += other.squares
    self.amax = max(self.amax, other.amax)
    self.hessian += other.hessian
    if self.fisher is not None:
      self.fisher += other.fisher

  def mean_weight(self):
    mean = self.total / self.count
    if not (mean > 0 and math.isfinite(mean)):
      raise SystemExit(f"{self.members[0]}: the weights of its tokens add up to {self.total}: is the loss finite?")
    return mean

  def tensors(self, name):
    """The entry's tensors by the names of a file, the mean weight 1."""
    if not self.count:
      return {}
    mean = self.mean_weight()
    leaf = "hessian" if self.hessian.dim() == 2 else "hessian_blocks"
    out = {f"{name}.{leaf}": self.hessian / mean, f"{name}.count": torch.tensor([self.count]),
           f"{name}.amax": torch.tensor(self.amax),
           f"{name}.sum_squared_weights": torch.tensor(self.squares / mean**2, dtype=torch.float64)}
    if self.fisher is not None:
      out[f"{name}.fisher_hessian"] = self.fisher
    return out


def structure_of(entries):
  """XXH3-128 of a line NAME K for each linear that the entries serve."""
  lines = {f"{m} {e.k}\n" for e in entries for m in e.members}
  # In byte order of the names, which a space after them would change.
  ordered = sorted(lines, key=lambda line: line.rsplit(" ", 1)[0].encode())
  return xxhash.xxh3_128_hexdigest("".join(ordered).encode())


def save_entries(path, entries, heldout=(), more=(), **metadata):
  """Writes a statistics file. An entry is called as its first module, or by the name it has."""
  tensors, groups = dict(more), {}
  entries = [e for e in entries if e.count]
  for prefix, some in (("", entries), ("heldout.", heldout)):
    for entry in some:
      name = getattr(entry, "name", None) or entry.members[0]
      tensors.update(entry.tensors(prefix + name))
      if not prefix and entry.members != [name]:
        groups[name] = entry.members
  save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, path,
            {"format": "twofour statistics 1", "structure": structure_of(entries), "groups": json.dumps(groups)} | metadata)
  return len(entries), len({m for e in entries for m in e.members})
