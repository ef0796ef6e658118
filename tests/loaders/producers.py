"""Exports of nvidia-modelopt and llm-compressor through every command."""
import json
import pathlib
import shutil

import dequantize
import exports
import loading
import models
import skeleton
from families import DIALECTS, LAYOUTS, demand_input_scales

# quantize --include takes these modules of an export to NVFP4, and leaves the rest as it is. Where all else is NVFP4 it
# is the head, which needs --also: heads are not among the linears that are quantized.
HEAD, ATTENTION = ("--include", "lm_head", "--also", "lm_head"), ("--include", "*self_attn*")
INCLUDE = {kind: HEAD for kind in ("NVFP4", "NVFP4+KV", "W4A16_NVFP4", "NVFP4A16")}
# FP8 KV scales: F32 in ModelOpt, BF16 in compressed-tensors (formats/README.md), so they are rounded on the way.
KV_SCALES = (".k_scale", ".v_scale")
# What the other dialect has no name for: ModelOpt has no INT4 of compressed-tensors' packing.
NO_NAME = {("llm-compressor", "W4A16"): "found INT4"}
# What vLLM 0.33.0 refuses: ModelOpt's MXFP4.
REFUSED = {("llm-compressor", "MXFP4A16"): "ModelOpt currently only supports"}


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
    self.to_resolve.append(("as exported", self.export, None))
    self.check("inspect", lambda: self.program.inspect(self.export))
    self.check("lint", lambda: self.program.lint(self.export))
    for layout in LAYOUTS:
      self.layout(layout)
    self.tasks()
    self.translate()
    self.bf16()
    self.fp8()
    self.include()
    if "nvfp4" in dequantize.formats(self.tensors).values():
      self.back_from_layout()
      self.prune()
      self.input_scales()
    self.graft(source)
    if self.model == "BIG/qwen3_moe":
      self.drop()

  def layout(self, layout):
    folder = self.out(layout)
    if self.check(layout, lambda: self.program.make("convert", self.export, folder, "--to", layout)):
      self.check(f"{layout}: inspect", lambda: self.program.inspect(folder))
      self.check(f"{layout}: lint", lambda: self.program.lint(folder))
      self.check(f"{layout}: validate", lambda: self.program.validate(folder, self.export))

  def tasks(self):
    """g8 in two tasks: the same files."""
    plan, folder = self.out("plan"), self.out("tasks")
    options = ("--to", "g8", "--max-shard-size", "200kB")
    def run():
      whole = self.program.make("convert", self.export, self.out("g8-small"), *options)
      plan.unlink(missing_ok=True)
      shutil.rmtree(folder, ignore_errors=True)
      self.program.run("plan", "-q", self.export, folder, *options, "-o", plan)
      for task in range(2):
        self.program.run("convert", "-q", "--plan", plan, "--task", f"{task}/2")
      self.program.run("merge", "-q", folder)
      self.demand_same(dequantize.read(whole), dequantize.read(folder))
    self.check("plan, tasks and merge", run)

  def back_from_layout(self):
    back = self.out("g8-back")
    if self.check("g8 and back", lambda: self.program.make(
        "convert", self.out("g8"), back, "--to", "nvfp4", "--dialect", self.home)):
      self.check_output("g8 and back", back)
      self.check("g8 and back: bytes", lambda: self.demand_same(self.tensors, dequantize.read(back)))

  def prune(self):
    folder = self.out("pruned")
    if self.check("prune", lambda: self.program.make("prune", self.export, folder, "--pattern", "2:4")):
      self.check_output("prune", folder, self.export)
      self.check("prune: formats", lambda: self.demand_formats(folder))

  def fp8(self):
    """Every quantized linear in FP8 of the export's own dialect, by tensor and by row."""
    folder = self.out("fp8")
    granularity = "tensor" if self.home == "modelopt" else "row"
    if self.check("fp8", lambda: self.program.make(
        "convert", self.export, folder, "--to", "fp8", "--dialect", self.home, "--granularity", granularity)):
      self.check_output("fp8", folder, self.export)

  def input_scales(self):
    """Other input scales of what is NVFP4; all else byte for byte."""
    for word, value in (("none", None), ("constant=0.5", 0.5)):
      self.other_input_scales(word, value)

  def other_input_scales(self, word, value):
    command, folder = f"input scales {word}", self.out(f"inputs-{word}")
    has_none = all(not dequantize.has_input_scale(p) for p in self.of_format("nvfp4"))
    if value is None and has_none:
      return
    if not self.check(command, lambda: self.program.make(
        "convert", self.export, folder, "--to", "nvfp4", "--dialect", self.home, "--input-scale", word)):
      return
    self.check_output(command, folder, self.export)
    stored = value if value is None or self.home == "modelopt" else 1 / value
    self.check(f"{command}: scales", lambda: demand_input_scales(folder, stored))
    names = {f"{m}.{part}" for m, p in dequantize.modules(self.tensors).items() if dequantize.format_of(p) == "nvfp4"
             for part in ("input_scale", "input_global_scale")}
    rest = lambda tensors: {n: t for n, t in tensors.items() if n not in names}
    self.check(f"{command}: rest", lambda: self.demand_same(rest(self.tensors), rest(dequantize.read(folder))))

  def of_format(self, kind):
    return [p for p in dequantize.modules(self.tensors).values() if dequantize.format_of(p) == kind]

  def graft(self, source):
    """A layer of the model in BF16 in place of the export's."""
    folder, layer = self.out("grafted"), "model.layers.1."
    shutil.rmtree(folder, ignore_errors=True)
    if self.check("graft", lambda: self.program.run("graft", "-q", self.export, source, folder, "--take", f"{layer}*")) is None:
      return
    # The layer that comes has no KV scales, which the others have.
    scaled = any(n.startswith(layer) and n.endswith(".k_scale") for n in self.tensors)
    self.check_output("graft", folder, rule="missing-kv-scale" if scaled else None)
    self.check("graft: validate", lambda: self.program.run(
        "validate", "-q", folder, "--source", self.export, "--donor", source))
    of = lambda tensors, inside: {n: t for n, t in tensors.items() if n.startswith(layer) == inside}
    self.check("graft: bytes", lambda: self.demand_same(
        of(self.tensors, False) | of(dequantize.read(source), True), dequantize.read(folder)))

  def drop(self):
    """The first and the last expert of each layer stay."""
    folder, path = self.out("dropped"), self.out("kept.json")
    blocks = sorted({n[:n.index(".experts.")] + ".experts" for n in self.tensors if loading.is_expert(n)})
    last = models.EXPERTS - 1
    path.write_text(json.dumps({block: [0, last] for block in blocks}))
    if not self.check("drop", lambda: self.program.make("drop", self.export, folder, "--experts", path)):
      return
    self.check_output("drop", folder, self.export)
    own = lambda tensors, e: {n.replace(f".experts.{e}.", ".experts.#."): t for n, t in tensors.items()
                              if f".experts.{e}." in n}
    self.check("drop: bytes", lambda: self.demand_same(own(self.tensors, last), own(dequantize.read(folder), 1)))

  def translate(self):
    """Into the other dialect and back: equal numbers, every module in the format that it had."""
    home, other = self.home, DIALECTS[1 - DIALECTS.index(self.home)]
    command, folder = f"to {other}", self.out(other)
    options = ("--to", "nvfp4", "--dialect", other)
    reason = NO_NAME.get((self.producer, self.kind))
    if reason:
      self.check(command, lambda: self.program.refuse("convert", self.export, folder, *options, reason=reason))
      return
    if not self.check(command, lambda: self.program.make("convert", self.export, folder, *options)):
      return
    self.check_output(command, folder, refusal=REFUSED.get((self.producer, self.kind)))
    self.check(f"{command}: formats", lambda: self.demand_formats(folder))
    self.check(f"{command}: diff", lambda: self.program.diff(self.export, folder, *self.kv_endings()))
    back, command = self.out("back"), f"to {other} and back"
    if self.check(command, lambda: self.program.make("convert", folder, back, "--to", "nvfp4", "--dialect", home)):
      self.check_output(command, back)
      self.check(f"{command}: bytes", lambda: self.demand_back(dequantize.read(back)))

  def kv_endings(self):
    return [ending for ending in KV_SCALES if any(name.endswith(ending) for name in self.tensors)]

  def demand_back(self, found):
    """Throws unless all is as exported, byte for byte but for the rounding of KV scales."""
    rest = lambda tensors: {n: t for n, t in tensors.items() if not n.endswith(KV_SCALES)}
    self.demand_same(rest(self.tensors), rest(found))
    for name in self.tensors.keys() - rest(self.tensors).keys():
      a, b = self.tensors[name].double(), found[name].double()
      if not abs(a - b) <= a * 2.0**-8:
        raise AssertionError(f"{name}: expected {a}, found {b}")

  def check_output(self, command, folder, source=None, refusal=None, rule=None):
    self.check(f"{command}: inspect", lambda: self.program.inspect(folder))
    self.check(f"{command}: lint", lambda: self.program.lint(folder, rule))
    if source:
      self.check(f"{command}: validate", lambda: self.program.validate(folder, source))
    method = dequantize.read_config(folder).get("quantization_config", {}).get("quant_method")
    if method:
      self.to_resolve.append((command, folder, refusal))
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
