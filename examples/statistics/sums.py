"""Sums over tokens that a statistics file holds, added up while a model runs."""
import math

import torch


class Entry:
  """The sums of one input, or of one matrix where tokens are weighted.

  hessian: sum of w x x' [K, K], w 1 or a token's weight before it is normalized; total, squares: sums of w and w^2;
  fisher: sum of e x x' [K, K]; count: tokens; amax: the largest |x|.
  """

  def __init__(self, k, device, fisher):
    self.k, self.count, self.total, self.squares, self.amax = k, 0, 0.0, 0.0, 0.0
    self.members = []
    self.hessian = torch.zeros(k, k, device=device)
    self.fisher = torch.zeros(k, k, device=device) if fisher else None

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

  def tensors(self, name):
    """The entry's tensors by the names of a file, the mean weight 1."""
    if not self.count:
      return {}
    mean = self.total / self.count
    if not (mean > 0 and math.isfinite(mean)):
      raise SystemExit(f"{name}: the weights of its tokens add up to {self.total}: is the loss finite?")
    out = {f"{name}.hessian": self.hessian / mean, f"{name}.count": torch.tensor([self.count]),
           f"{name}.amax": torch.tensor(self.amax),
           f"{name}.sum_squared_weights": torch.tensor(self.squares / mean**2, dtype=torch.float64)}
    if self.fisher is not None:
      out[f"{name}.fisher_hessian"] = self.fisher
    return out
