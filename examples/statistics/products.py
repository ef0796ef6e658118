"""Sees every product of activations with a weight of a model, whatever the module that computes it.

Modules of one family differ from those of the next: nn.Linear, stacked experts [E, N, K] of transformers 5, [E, K, N] of
gpt-oss. All of them end in a call of torch with a parameter, or a slice of one. `Products` looks at these calls.
"""
import contextlib
import dataclasses

import torch
from torch.overrides import TorchFunctionMode

LINEAR = {torch.nn.functional.linear}
MATMUL = {torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__}
BATCHED = {torch.bmm, torch.Tensor.bmm}
SLICE = torch.Tensor.__getitem__
VIEW = {torch.Tensor.view, torch.Tensor.transpose}
SUM = {torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__}
SCALED = {torch.mul, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.Tensor.__imul__}


@dataclasses.dataclass
class Product:
  """x [T, K] times a weight: y [..., N], as torch goes on with it, so that its gradient can be seen."""
  weight: str  # the parameter's name in the model
  expert: int | None  # of a stack
  x: torch.Tensor
  y: torch.Tensor
  same_input: bool  # x is the very input of the product before
  tokens: torch.Tensor | None = None  # which tokens of the batch the rows are of; None: all, in order


class Rows:
  """Some rows of one matrix of y [E, T, N]."""

  def __init__(self, y, expert, rows):
    self.y, self.expert, self.rows = y, expert, rows

  def register_hook(self, see):
    self.y.register_hook(lambda gradient: see(gradient[self.expert][self.rows]))


class Products(TorchFunctionMode):
  """Calls see(Product) for each product, while a block `with products:` runs.

  see_scaled(product, scaled): an expert's y times its share of a token. Experts must be computed one by one:
  set_experts_implementation("eager") of transformers.
  """

  def __init__(self, model, see, see_scaled=None):
    super().__init__()
    self.see, self.see_scaled = see, see_scaled
    self.names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False) if p.dim() >= 2}
    self.slices = {}  # id of a slice -> the slice, name, expert; held, so that an id stays its own
    self.views = {}  # the same of a matrix whose blocks of rows have inputs of their own: the view, name
    self.forget()

  def forget(self):
    self.slices.clear()
    self.views.clear()
    self.last = None  # x
    self.picked = None, None  # rows of activations, and which
    self.rows = None, None  # an expert, and the tokens that it sees
    self.result = None, None  # an expert's y, and its product

  def place(self, weight):
    """(name, expert) of a parameter or of a slice of a stack, else None."""
    if id(weight) in self.names:
      return self.names[id(weight)], None
    found = self.slices.get(id(weight))
    return found and found[1:]

  def show(self, place, x, y):
    same = x is self.last
    self.last = x
    product = Product(*place, x.flatten(0, -2), y, same)
    if place[1] is not None:
      if x is self.picked[0]:
        self.rows = place, self.picked[1]
      product.tokens = self.rows[1] if self.rows[0] and self.rows[0][1] == place[1] else None
      self.result = y, product
    self.see(product)

  def __torch_function__(self, func, types, args=(), kwargs=None):
    out = func(*args, **(kwargs or {}))
    if func is SLICE and id(args[0]) in self.names and args[0].dim() == 3 and out.dim() == 2:
      self.slices[id(out)] = (out, self.names[id(args[0])], int(args[1]))
    elif func is SLICE and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64 and args[1].dim() == 1:
      self.picked = out, args[1]
    elif (func in LINEAR or func in MATMUL) and len(args) > 1:
      place = self.place(args[1])
      if place and args[1].dim() == 2 and args[0].dim() >= 2:
        self.show(place, args[0], out)
        self.slices.pop(id(args[1]), None)
    elif func in VIEW and (id(args[0]) in self.names or id(args[0]) in self.views):
      name = self.names.get(id(args[0])) or self.views[id(args[0])][1]
      self.views[id(out)] = out, name
    elif func in BATCHED and id(args[1]) in self.views:
      self.last = args[0]
      self.see(Product(self.views[id(args[1])][1], None, args[0].flatten(0, 1), out, False))
    elif func in BATCHED and self.place(args[1]):
      name, _ = self.place(args[1])
      for expert in range(len(args[1])):  # rows of zeros are tokens of other experts
        rows = args[0][expert].any(-1)
        if rows.any():
          self.see(Product(name, expert, args[0][expert][rows], Rows(out, expert, rows), False))
    elif func in SCALED and self.see_scaled and args[0] is self.result[0]:
      self.see_scaled(self.result[1], out)
      self.result = None, None
    return out

  def __exit__(self, *args):
    self.forget()
    return super().__exit__(*args)


@contextlib.contextmanager
def experts_one_by_one(model):
  """Computes stacked experts in the plain way inside the block, so that each of their products is a call."""
  if not any(p.dim() == 3 for p in model.parameters()) or not hasattr(model, "set_experts_implementation"):
    yield
    return
  before = model.get_experts_implementation()
  model.set_experts_implementation("eager")
  try:
    yield
  finally:
    model.set_experts_implementation(before)
