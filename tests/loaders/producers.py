"""Exports of nvidia-modelopt and llm-compressor through every command."""
import pathlib

import dequantize
import exports
import loading
import skeleton
from families import DIALECTS, LAYOUTS

# quantize --include takes these modules of an export to NVFP4, and leaves the rest as it is. Where all else is NVFP4 it
# is the head, which needs --also: heads are not among the linears that are quantized.
HEAD, ATTENTION = ("--include", "lm_head", "--also", "lm_head"), ("--include", "*self_attn*")
INCLUDE = {kind: HEAD for kind in ("NVFP4", "NVFP4+KV", "W4A16_NVFP4", "NVFP4A16")}
# FP8 KV scales: F32 in ModelOpt, BF16 in compressed-tensors (formats/README.md), so they are rounded on the way.
KV_SCALES = (".k_scale", ".v_scale")
# What the other dialect has no name for: ModelOpt has no INT4 of compressed-tensors' packing, no weight-only MXFP4.
NO_NAME = {("llm-compressor", "W4A16"): "INT4", ("llm-compressor", "MXFP4A16"): "MXFP4"}


class Export:
  """One export of one model on its way through the program."""

  def __init__(self, model, producer, kind, work, program, report):
    self.model, self.producer, self.kind = model, producer, kind
    self.name = f"{model} {producer} {kind}"
    self.program, self.report = program, report
    self.folder = pathlib.Path(work) / "exports" / model.replace("/", "-") / f"{producer}-{kind}"
    self.export = self.folder / "export"
    self.home = DIALECTS[producer == "llm-compressor"]
    self.to_resolve = []

  def check(self, command, function):
    return self.report.check(self.name, command, function)

  def out(self, name):
    return self.folder / name

  def run(self, source):
    exports.export(self.producer, self.kind, source, self.export)
    self.tensors = dequantize.read(self.export)
    self.to_resolve.append(("as exported", self.export))
    self.check("inspect", lambda: self.program.inspect(self.export))
    self.check("lint", lambda: self.program.lint(self.export))
    for layout in LAYOUTS:
      self.layout(layout)
    self.translate()
    self.bf16()
    self.include()

  def layout(self, layout):
    folder = self.out(layout)
    if self.check(layout, lambda: self.program.make("convert", self.export, folder, "--to", layout)):
      self.check(f"{layout}: inspect", lambda: self.program.inspect(folder))
      self.check(f"{layout}: lint", lambda: self.program.lint(folder))
      self.check(f"{layout}: validate", lambda: self.program.validate(folder, self.export))

  def translate(self):
    """Into the other dialect and back: equal numbers, every module in the format that it had."""
    home, other = self.home, DIALECTS[1 - DIALECTS.index(self.home)]
    command, folder = f"to {other}", self.out(other)
    options = ("--to", "nvfp4", "--dialect", other)
    reason = NO_NAME.get((self.producer, self.kind))
    if reason:
      self.check(command, lambda: self.program.refuse("convert", self.export, folder, *options, reason=reason))
      return
    if not self.check(command, lambda: self.make_or_refuse(folder, *options)) or not folder.exists():
      return
    self.check_output(command, folder)
    self.check(f"{command}: formats", lambda: self.demand_formats(folder))
    self.check(f"{command}: diff", lambda: self.program.diff(self.export, folder, *self.kv_endings()))
    back, command = self.out("back"), f"to {other} and back"
    if self.check(command, lambda: self.program.make("convert", folder, back, "--to", "nvfp4", "--dialect", home)):
      self.check_output(command, back)
      self.check(f"{command}: bytes", lambda: self.demand_back(dequantize.read(back)))

  def kv_endings(self):
    return [ending for ending in KV_SCALES if any(name.endswith(ending) for name in self.tensors)]

  def make_or_refuse(self, folder, *options):
    """Converts. Experts in block FP8 may be refused instead: vLLM 0.33.0 takes them from ModelOpt's dialect only inside
    MIXED_PRECISION, other engines not at all. What is written must resolve all the same."""
    try:
      return self.program.make("convert", self.export, folder, *options)
    except AssertionError as error:
      if self.kind == "FP8_BLOCK" and any(map(loading.is_expert, self.tensors)) and "expert" in str(error).lower():
        return folder
      raise

  def demand_back(self, found):
    """Throws unless all is as exported, byte for byte but for the rounding of KV scales."""
    rest = lambda tensors: {n: t for n, t in tensors.items() if not n.endswith(KV_SCALES)}
    self.demand_same(rest(self.tensors), rest(found))
    for name in self.tensors.keys() - rest(self.tensors).keys():
      a, b = self.tensors[name].double(), found[name].double()
      if not abs(a - b) <= a * 2.0**-8:
        raise AssertionError(f"{name}: expected {a}, found {b}")

  def check_output(self, command, folder, source=None):
    self.check(f"{command}: inspect", lambda: self.program.inspect(folder))
    self.check(f"{command}: lint", lambda: self.program.lint(folder))
    if source:
      self.check(f"{command}: validate", lambda: self.program.validate(folder, source))
    method = dequantize.read_config(folder).get("quantization_config", {}).get("quant_method")
    if method:
      self.to_resolve.append((command, folder))
    if method == "compressed-tensors":
      self.check(f"{command}: compressed-tensors' schemes", lambda: skeleton.demand_formats(folder))
      self.check(f"{command}: compressed-tensors' values", lambda: skeleton.demand_values(folder))

  def demand_formats(self, folder):
    a, b = dequantize.formats(self.tensors), dequantize.formats(dequantize.read(folder))
    if a != b:
      changed = [f"{m}: {a.get(m)} became {b.get(m)}" for m in sorted(a.keys() | b.keys()) if a.get(m) != b.get(m)]
      raise AssertionError(f"{len(changed)} modules: {'; '.join(changed[:3])}")

  def demand_same(self, expected, found):
    lines = dequantize.differences(expected, found)
    if lines:
      raise AssertionError(f"{len(lines)} tensors: {'; '.join(lines[:3])}")

  def bf16(self):
    folder = self.out("bf16")
    if self.check("bf16", lambda: self.program.make("convert", self.export, folder, "--to", "bf16")):
      self.check_output("bf16", folder, self.export)
      self.check("bf16: weights", lambda: self.demand_widened(folder))

  def demand_widened(self, folder):
    """Throws unless every module is our dequantization, and nothing is left of scales or the quantization config."""
    expected = {f"{m}.weight": p["weight"] if dequantize.format_of(p) == "float" else
                dequantize.to_bfloat16(dequantize.dequantize(p)) for m, p in dequantize.modules(self.tensors).items()}
    found = dequantize.read(folder)
    plain = {n: t for n, t in self.tensors.items() if n.endswith((".weight", ".bias")) and t.ndim == 1}
    self.demand_same(expected | plain, found)
    if "quantization_config" in dequantize.read_config(folder):
      raise AssertionError("quantization_config is left over")

  def include(self):
    """quantize --include: these modules become NVFP4, everything else stays byte for byte."""
    choice, folder = INCLUDE.get(self.kind, ATTENTION), self.out("included")
    command = f"quantize --include {choice[1]}"
    if not self.check(command, lambda: self.program.make(
        "quantize", self.export, folder, "--dialect", self.home, *choice)):
      return
    self.check_output(command, folder, self.export)
    self.check(f"{command}: rest", lambda: self.demand_rest(folder, choice[1].strip("*")))

  def demand_rest(self, folder, part):
    found = dequantize.read(folder)
    kinds = dequantize.formats(found)
    wrong = [m for m in dequantize.formats(self.tensors) if part in m and kinds.get(m) != "nvfp4"]
    if wrong:
      raise AssertionError(f"expected NVFP4, found {kinds.get(wrong[0])} in {wrong[:3]}")
    rest = lambda tensors: {n: t for n, t in tensors.items() if part not in n}
    self.demand_same(rest(self.tensors), rest(found))
