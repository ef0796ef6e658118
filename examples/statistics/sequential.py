"""Collects statistics group by group, each from a model whose earlier groups are compressed already.

Two streams of hidden states run side by side, of the model as it is and of the compressed one. For each group of linears
with one input the layer runs on both; d is the input of the first, x that of the second. Of each entry H, the sum of x x',
and of each linear C, the sum of (W (d - x) + r) x', go into the file: r is what the compressed stream lacks where the
linear's output is added to it. twofour then compresses the group by these sums, and the layer goes on with what it wrote.
Experts see the tokens that the compressed model sends them.
"""
import contextlib
import copy
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import tempfile
from fnmatch import fnmatchcase

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import save_file

from checkpoint import LAST, STACK, bytes_of
from products import SUM, Products
from sums import Entry, save_entries

TOPK = {torch.topk, torch.Tensor.topk}


def add_options(parser):
  group = parser.add_argument_group("sequential")
  group.add_argument("--sequential", action="store_true", help="of a model whose earlier linears are compressed")
  group.add_argument("--pattern", help="that linears are pruned to: 2:4 or 4:8-paired (default: none)")
  group.add_argument("--pruned", metavar="GLOB", nargs="+", default=["*"],
                     help="linears that --pattern is for; others are quantized dense (default: all)")
  group.add_argument("--twofour", metavar="BINARY", default="twofour")
  group.add_argument("--quantize", metavar="WORDS", default="", help="more options of twofour quantize, in one word")


def check_options(parser, o):
  if o.sequential and (o.fisher or o.per_expert or o.saliency):
    parser.error("--sequential: expected no --fisher, --per-expert or --saliency beside it, which take one pass of their own")
  if not o.sequential and (o.pattern or o.quantize or o.pruned != ["*"]):
    parser.error("--pattern, --pruned and --quantize: expected --sequential beside them")


@dataclasses.dataclass
class Seen:
  """A product of one of the two models."""
  x: torch.Tensor
  rows: torch.Tensor | None  # of the batch, by token; None: all
  same_input: bool  # as the product before
  stream: torch.Tensor | None = None  # that its output was added to, before


class Enough(Exception):
  """What was to be seen of a layer has been."""


class LayerProducts(Products):
  """Products of a layer by (weight, expert), the streams that outputs are added to, and choices of experts to repeat.

  last: the product after whose successor nothing is looked for; None: all are.
  """

  def __init__(self, layer, prefix, stream, choices=None, last=None):
    super().__init__(layer, self.keep)
    self.prefix, self.stream, self.choices, self.last_wanted = prefix, stream, choices, last
    self.chosen, self.found, self.added = [], {}, {}

  def keep(self, product):
    if self.last_wanted in self.found:
      raise Enough
    key = self.prefix + product.weight, product.expert
    self.found[key] = Seen(product.x, product.tokens, product.same_input)
    self.added[id(product.y)] = [product.y, key]

  def __torch_function__(self, func, types, args=(), kwargs=None):
    out = super().__torch_function__(func, types, args, kwargs)
    if func in TOPK:
      if self.choices is not None:
        chosen = self.choices.pop(0)
        out = torch.return_types.topk((args[0].gather(-1, chosen), chosen))
      self.chosen.append(out[1])
    elif func in SUM and len(args) == 2 and all(isinstance(a, torch.Tensor) for a in args):
      self.see_sum(*args, out)
    return out

  def see_sum(self, a, b, out):
    """Outputs that are added to one another count as outputs until they are added to the stream."""
    keys = [key for t in (a, b) for key in self.added.get(id(t), [None])[1:]]
    if a is self.stream or b is self.stream:
      before = self.stream.detach().flatten(0, -2)
      for key in keys:
        self.found[key].stream = before
      self.stream = out
      self.added.clear()
    elif keys:
      self.added[id(out)] = [out] + keys


class Layers:
  """The decoder layers of a model, each to be run by itself on hidden states [B, T, H]."""

  def __init__(self, model, device):
    count = model.config.get_text_config().num_hidden_layers
    name, self.layers = next((n, m) for n, m in model.named_modules()
                             if isinstance(m, torch.nn.ModuleList) and n.endswith("layers") and len(m) == count)
    self.prefixes = [f"{name}.{i}." for i in range(count)]
    self.model, self.device, self.given = model, device, {}

  def record(self, tokens):
    """Keeps what layers are given beside hidden states, which depends on the shape of tokens [B, T] alone."""
    given = self.given[len(tokens)] = []
    def see(module, args, kwargs):
      given.append((args[1:], {k: v for k, v in kwargs.items() if k != "hidden_states"}))
    hooks = [layer.register_forward_pre_hook(see, with_kwargs=True) for layer in self.layers]
    with torch.no_grad():
      self.model(input_ids=tokens.to(self.device), use_cache=False)
    for hook in hooks:
      hook.remove()

  def start(self, tokens):
    """Hidden states before the first layer."""
    found = []
    def stop(module, args, kwargs):
      found.append((args[0] if args else kwargs["hidden_states"]).clone())
      raise StopIteration
    hook = self.layers[0].register_forward_pre_hook(stop, with_kwargs=True)
    with contextlib.suppress(StopIteration), torch.no_grad():
      self.model(input_ids=tokens.to(self.device), use_cache=False)
    hook.remove()
    return found[0]

  def run(self, layer, index, hidden):
    args, kwargs = self.given[len(hidden)][index]
    with torch.no_grad():
      y = layer(hidden, *args, **kwargs)
    return y[0] if isinstance(y, tuple) else y

  def see(self, layer, index, hidden, choices=None, last=None):
    products = LayerProducts(layer, self.prefixes[index], hidden, choices, last)
    with contextlib.suppress(Enough), products:
      self.run(layer, index, hidden)
    return products


def group_of(key, previous):
  """What products are compressed together: all experts of a layer, and those with the input of the previous one."""
  weight, expert = key
  stack = STACK.match(weight.removesuffix(".weight"))
  if expert is not None and stack:
    return stack[1], stack[2] == "down_proj"
  single = re.match(r"^(.*experts)\.\d+\.(\w+)\.weight$", weight)
  if single:
    return single[1], single[2] in LAST
  return previous or weight


class Group:
  """The sums of the linears of one group."""

  def __init__(self, checkpoint, weights, device):
    self.checkpoint, self.weights, self.device = checkpoint, weights, device
    self.entries, self.heldout = {}, {}
    self.differences, self.residuals = {}, {}
    self.entry_of = {}  # of a linear

  def add(self, key, d, x, token, is_heldout):
    """What both models see of one product. token: the batch's first."""
    members = self.checkpoint.members(*key)
    is_expert = key[1] is not None or ".experts." in key[0]
    is_down = is_expert and key[0].removesuffix(".weight").endswith(LAST)
    name = tuple(members) if self.weights or is_down else "all"
    entries = self.heldout if is_heldout else self.entries
    entry = entries.setdefault(name, Entry(x.x.shape[-1], self.device))
    entry.add_members(members)
    x_rows, d_rows = x.x.float(), d.x.float()
    if x_rows.shape != d_rows.shape:
      raise SystemExit(f"{members[0]}: the two models see {len(d_rows)} and {len(x_rows)} tokens: its experts are chosen in a "
                       "way that cannot be repeated")
    weighted, w = x_rows, None
    if self.weights and not is_heldout:
      w = self.weights[members[0]].flatten()[token:token + len(x_rows)] if x.rows is None else \
          self.weights[members[0]].flatten()[x.rows + token]
      weighted = x_rows * w[:, None]
    # Others with the same input are counted with it.
    is_first = name != "all" or (not x.same_input if is_expert else entry.members[0] == members[0])
    if is_first:
      entry.see_input(x_rows)
      entry.add(x_rows, w)
    if is_heldout:
      return
    if is_first:
      self.differences.setdefault(name, torch.zeros_like(entry.hessian)).addmm_((d_rows - x_rows).T, weighted)
    self.entry_of |= {m: name for m in members}
    if x.stream is not None and d.stream is not None and x.rows is None:
      r = (d.stream - x.stream).float()
      self.residuals.setdefault(members[0], torch.zeros(r.shape[1], entry.k, device=self.device)).addmm_(r.T, weighted)

  def offsets(self):
    """C of each linear."""
    out = {}
    for m, name in self.entry_of.items():
      entry, w = self.entries[name], self.checkpoint.tensor(f"{m}.weight")
      if not w.is_floating_point() or w.dtype.itemsize < 2:
        raise SystemExit(f"{m}: expected weights in floats of 16 or 32 bits, found {w.dtype}: widen them first (convert --to bf16)")
      w = w.to(self.device).float()
      c = w.double() @ self.differences[name].double()
      if m in self.residuals:
        c += self.residuals[m].double()
      out[f"{m}.target_offset"] = (c / entry.mean_weight()).float()
    return out

  def to_host(self):
    for entry in [*self.entries.values(), *self.heldout.values()]:
      entry.hessian = entry.hessian.cpu()
    self.differences, self.residuals = {}, {}


class Compressor:
  """Has twofour compress groups, and keeps a hash of all that it wrote."""

  def __init__(self, checkpoint, o):
    self.checkpoint, self.o, self.hasher = checkpoint, o, xxhash.xxh3_128()
    plan = json.loads(self.run("quantize", checkpoint.folder, "/nonexistent", "--dry-run", "--json"))
    self.linears = {t["name"].rpartition(".")[0] for t in plan["tensors"] if t["decision"] == "quantize"}

  def takes(self, key):
    """Whether twofour quantizes what a product multiplies with."""
    members = self.checkpoint.members(*key)
    return bool(members) and self.linears.issuperset(members)

  def predecessor(self):
    return self.hasher.hexdigest()

  def compress(self, group, offsets, metadata):
    """-> weights by linear, BF16."""
    members = [m for entry in group.entries.values() for m in entry.members]
    pruned = [any(fnmatchcase(m, glob) for glob in self.o.pruned) for m in members]
    if any(pruned) != all(pruned):
      raise SystemExit(f"--pruned: expected all linears with one input or none, found some of {', '.join(members)}")
    with tempfile.TemporaryDirectory() as folder:
      folder = pathlib.Path(folder)
      (folder / "group").mkdir()
      (folder / "group" / "config.json").write_text((self.checkpoint.folder / "config.json").read_text())
      save_file({f"{m}.weight": self.checkpoint.tensor(f"{m}.weight") for m in members}, folder / "group" / "model.safetensors")
      save_entries(folder / "stats", group.entries.values(), more=offsets, **metadata | {"weights": ""})
      pattern = ["--pattern", self.o.pattern] if self.o.pattern and all(pruned) else []
      self.run("quantize", folder / "group", folder / "nvfp4", "--stats", folder / "stats", "-q", *pattern)
      self.run("convert", folder / "nvfp4", folder / "bf16", "--to", "bf16", "-q")
      out = {}
      for file in (folder / "bf16").glob("*.safetensors"):
        with safe_open(file, "pt") as f:
          out |= {name.removesuffix(".weight"): f.get_tensor(name) for name in f.keys()}
    for m in sorted(members):
      self.hasher.update(m.encode() + bytes_of(out[m]))
    return out

  def run(self, command, *words):
    more = shlex.split(self.o.quantize) if command == "quantize" else []
    if command == "quantize" and "--device" not in more:
      more += ["--device", "cpu"]  # to start a GPU takes longer than to solve a group
    try:
      done = subprocess.run([self.o.twofour, command, *map(str, words), *more], capture_output=True, text=True)
    except OSError as error:
      raise SystemExit(f"--twofour: expected the program, found {self.o.twofour}: {error.strerror}") from None
    if done.returncode:
      raise SystemExit(f"{self.o.twofour} {command} failed with {done.returncode}:\n{done.stderr}")
    return done.stdout


def replace(layer, prefix, key, checkpoint, weights):
  """Puts compressed weights where the model multiplies with them."""
  members = checkpoint.members(*key)
  parameter = dict(layer.named_parameters(remove_duplicate=False))[key[0].removeprefix(prefix)]
  own = parameter.data if key[1] is None else parameter.data[key[1]]
  parts = [torch.cat([source[m].to(own) for m in members]) for source in
           ({m: checkpoint.tensor(f"{m}.weight") for m in members}, weights)]
  # Stacks hold the parts one after the other, row by row, or across.
  arrangements = (lambda t: t, lambda t: t.unflatten(0, (len(members), -1)).transpose(0, 1).flatten(0, 1),
                  lambda t: t.T, lambda t: t.unflatten(0, (len(members), -1)).transpose(0, 1).flatten(0, 1).T)
  for arrange in arrangements:
    if arrange(parts[0]).shape == own.shape and torch.equal(arrange(parts[0]), own):
      own.copy_(arrange(parts[1]))
      return
  raise SystemExit(f"{key[0]}: expected the weights of {', '.join(members)} in the model, found others")


def groups_of(layer, prefix, compressor, found):
  """The group of each product of a layer; and those that are compressed, in the layer's order, with their last product."""
  order, groups, previous = {}, {}, None
  for key, seen in found.items():
    if key[1] is not None and compressor.checkpoint.is_stacked(key[0]):
      raise SystemExit(f"{key[0]}: expected experts one by one in the file, found a stack")
    order[key] = group_of(key, order.get(previous) if seen.same_input and key[1] is None else None)
    if compressor.takes(key):
      groups[order[key]] = None
    previous = key
  # Experts have their products in any order, so all of the layer is run for them.
  last = {name: None if isinstance(name, tuple) else [key for key in order if order[key] == name][-1] for name in groups}
  return order, last


def collect(model, checkpoint, tokens, kept, weights, metadata, o):
  """Writes the statistics of all groups; -> the number of entries and of linears."""
  compressor = Compressor(checkpoint, o)
  windows = torch.cat([tokens, kept])
  batches = [slice(i, min(i + o.batch, end)) for begin, end in ((0, len(tokens)), (len(tokens), len(windows)))
             for i in range(begin, end, o.batch)]
  layers = Layers(model, o.device)
  for size in {b.stop - b.start for b in batches}:
    layers.record(windows[:size])
  dense = [layers.start(windows[b]) for b in batches]
  ours = list(dense)
  done, more, before = [], {}, compressor.predecessor()
  for index, layer in enumerate(layers.layers):
    prefix, compressed = layers.prefixes[index], copy.deepcopy(layer)
    order, groups = groups_of(layer, prefix, compressor, layers.see(layer, index, dense[0]).found)
    for name, last in groups.items():
      group, keys = Group(checkpoint, weights, o.device), {}
      for b, d_hidden, x_hidden in zip(batches, dense, ours):
        x = layers.see(compressed, index, x_hidden, last=last)
        d = layers.see(layer, index, d_hidden, x.chosen, last)
        for key, seen in x.found.items():
          if order.get(key, group_of(key, None)) == name and compressor.takes(key):
            keys[key] = None
            group.add(key, d.found[key], seen, b.start * windows.shape[1], b.start >= len(tokens))
      offsets, before = group.offsets(), compressor.predecessor()
      new = compressor.compress(group, offsets, metadata)
      for key in keys:
        replace(compressed, prefix, key, checkpoint, new)
      group.to_host()
      done.append(group)
      more |= {n: t.cpu() for n, t in offsets.items()}
    dense = [layers.run(layer, index, h) for h in dense]
    ours = [layers.run(compressed, index, h) for h in ours]
    far = sum((d - x).double().square().sum().item() for d, x in zip(dense, ours))
    whole = sum(d.double().square().sum().item() for d in dense)
    print(f"layer {index + 1} of {len(layers.layers)}: {len(groups)} groups, distance of the streams {(far / whole)**0.5:.4f}",
          flush=True)
  return save_entries(o.out, [e for g in done for e in g.entries.values()], [e for g in done for e in g.heldout.values()],
                      more, predecessor=before, **metadata)
