"""Checkpoints of each dialect, broken in each way that repair mends, and loaded after it as the sound one is."""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

import dequantize
import loading
import models
import skeleton

# Each dialect and format that an engine loads: a command and its options.
SOUND = {
    "nvfp4-modelopt": ("quantize", "--dialect", "modelopt", "--input-scale", "constant"),
    "nvfp4-compressed-tensors": ("quantize", "--dialect", "compressed-tensors", "--input-scale", "constant"),
    "fp8-modelopt": ("convert", "--to", "fp8", "--dialect", "modelopt", "--granularity", "tensor"),
    "fp8-compressed-tensors-row": ("convert", "--to", "fp8", "--dialect", "compressed-tensors", "--granularity", "row"),
    "fp8-compressed-tensors-block": ("convert", "--to", "fp8", "--dialect", "compressed-tensors", "--granularity", "block"),
    "fp8-deepseek": ("convert", "--to", "fp8", "--dialect", "deepseek", "--granularity", "block"),
    "mxfp8-modelopt": ("convert", "--to", "mxfp8", "--dialect", "modelopt"),
    "mxfp8-compressed-tensors": ("convert", "--to", "mxfp8", "--dialect", "compressed-tensors"),
    "mxfp4-compressed-tensors": ("convert", "--to", "mxfp4", "--dialect", "compressed-tensors"),
}


class Files:
  """A checkpoint in one file, to be changed: tensors by name, texts by file."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)
    self.config = json.loads((self.folder / "config.json").read_text())
    self.tensors = dequantize.read(self.folder)
    self.without = {"twofour.json", "model.safetensors.index.json"}

  def write(self, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in self.folder.glob("*.json"):
      if path.name not in self.without:
        shutil.copy(path, folder)
    if self.config is None:
      (folder / "config.json").unlink()
    else:
      (folder / "config.json").write_text(json.dumps(self.config, indent=2))
    save_file({name: t.contiguous() for name, t in self.tensors.items()}, folder / "model.safetensors", {"format": "pt"})

  def one(self, *endings):
    """The last tensor with the first of the endings that any has, or None."""
    for ending in endings:
      names = sorted(name for name in self.tensors if name.endswith(ending))
      if names:
        return names[-1]
    return None

  def scale(self, name, factor):
    self.tensors[name] = (self.tensors[name].float() * factor).to(self.tensors[name].dtype)


INPUT = ("up_proj.input_scale", "up_proj.input_global_scale")
GLOBAL = ("down_proj.weight_scale_2", "down_proj.weight_global_scale")


def lose(*endings):
  def spoil(files):
    name = files.one(*endings)
    if name is None:
      return False
    del files.tensors[name]
  return spoil


def change_input(value):
  def spoil(files):
    name = files.one(*INPUT)
    if name is None:
      return False
    files.tensors[name] = torch.full_like(files.tensors[name], value)
  return spoil


def unequal_inputs(files):
  name = files.one(*INPUT)
  if name is None:
    return False
  files.scale(name, 0.5)


def reciprocal(files):
  name = files.one(*GLOBAL)
  if name is None:
    return False
  files.tensors[name] = 1 / files.tensors[name]


def unequal_globals(files):
  name = files.one("up_proj.weight_scale_2", "up_proj.weight_global_scale")
  if name is None:
    return False
  files.scale(name, 1.25)


def zero_half(files):
  name = files.one("up_proj.weight", "up_proj.weight_packed")
  codes = files.tensors[name].clone()
  codes.view(torch.uint8)[codes.shape[0] // 2:] = 0
  files.tensors[name] = codes


def no_exclusions(files):
  config = files.config["quantization_config"]
  for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
    if config.get(key):
      config[key] = []
      return None
  return False


def no_quantization(files):
  del files.config["quantization_config"]
  files.without.add("hf_quant_config.json")


def double_size(files):
  key = "moe_intermediate_size" if "moe_intermediate_size" in files.config else "intermediate_size"
  files.config[key] *= 2


def wrap_names(files):
  files.tensors = {"_orig_mod." + name: t for name, t in files.tensors.items()}


def lose_config(files):
  files.config = None


# What is broken, how, options of repair, whether the donor gives what is lost, and whether the weights stay the same.
FAULTS = [
    ("input scale lost", lose(*INPUT), (), False, True),
    ("input scale zero", change_input(0.0), (), False, True),
    ("input scales unequal", unequal_inputs, (), False, True),
    ("global scale turned", reciprocal, (), False, True),
    ("global scales unequal", unequal_globals, ("--fold", "larger"), False, False),
    ("exclusions lost", no_exclusions, (), False, True),
    ("quantization lost", no_quantization, (), False, True),
    ("size doubled", double_size, (), False, True),
    ("names wrapped", wrap_names, (), False, True),
    ("norm lost", lose("model.norm.weight"), (), True, True),
    ("head lost", lose("lm_head.weight"), (), True, True),
    ("scales lost", lose("down_proj.weight_scale", "down_proj.weight_scale_inv"), (), True, True),
    ("config lost", lose_config, (), True, True),
    ("codes zero", zero_half, (), True, True),
]


class Repairs:
  """A model in every dialect, each broken, repaired and loaded."""

  def __init__(self, model, work, program, report):
    self.model, self.program, self.report = model, program, report
    self.name = f"repair {model}"
    self.folder = pathlib.Path(work) / model / "repairs"
    self.to_resolve = []  # as of families.Family

  def run(self):
    source = self.folder / "source"
    if not source.exists():
      models.make(self.model, source)
    for kind, (command, *options) in SOUND.items():
      sound = self.folder / kind / "sound"
      if "moe" in self.model and kind == "mxfp8-modelopt":
        continue  # vLLM 0.33.0 has no such experts
      if not self.report.check(self.name, kind, lambda: self.program.make(command, source, sound, *options)):
        continue
      self.to_resolve.append((f"{kind}: sound", sound, None))
      for fault in FAULTS:
        self.mend(kind, sound, *fault)

  def mend(self, kind, sound, what, spoil, options, needs_donor, keeps):
    files = Files(sound)
    if spoil(files) is False:
      return  # the dialect has no such tensors
    command, place = f"{kind}: {what}", self.folder / kind / what.replace(" ", "-")
    broken, out = place / "broken", place / "out"
    files.write(broken)
    donor = ("--donor", sound) if needs_donor else ()
    if self.is_sound(broken):
      return  # the dialect does without
    if not self.report.check(self.name, command, lambda: self.mended(broken, out, *options, *donor)):
      return
    check = lambda step, function: self.report.check(self.name, f"{command}: {step}", function)
    check("lint", lambda: self.program.lint(out))
    check("validate", lambda: self.program.run("validate", "-q", out, "--source", broken, *donor))
    if keeps:
      check("weights", lambda: demand_same_weights(sound, out))
    if "compressed-tensors" in kind:
      check("compressed-tensors", lambda: demand_classes(out))
    if "modelopt" not in kind:
      check("transformers", lambda: demand_loads_alike(sound, out, keeps))
    self.to_resolve.append((command, out, None))

  def is_sound(self, folder):
    try:
      self.program.lint(folder)
      return True
    except AssertionError:
      return False

  def mended(self, broken, out, *options):
    self.program.make("repair", broken, out, *options)
    if not out.exists():
      raise AssertionError("expected a mend, found nothing written")
    return out


def demand_same_weights(sound, out):
  """Throws unless both give the same weights under the same names."""
  ours, theirs = (dequantize.modules(dequantize.read(folder)) for folder in (sound, out))
  if ours.keys() != theirs.keys():
    raise AssertionError(f"other modules: {sorted(ours.keys() ^ theirs.keys())[:3]}")
  wrong = [name for name in ours
           if not torch.equal(dequantize.dequantize(ours[name]).double(), dequantize.dequantize(theirs[name]).double())]
  if wrong:
    raise AssertionError(f"weights of {len(wrong)} modules differ: {wrong[:3]}")


def demand_classes(folder):
  skeleton.demand_formats(folder)
  skeleton.demand_values(folder)


def demand_loads_alike(sound, out, keeps):
  """Throws unless transformers loads both, with the same names left over, or stops at both with the same words."""
  results = []
  for folder in (sound, out):
    try:
      loaded = loading.Loaded(folder)
      results.append((loaded.missing, loaded.unexpected, loaded.mismatched, loaded))
    except Exception as error:
      results.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
  if isinstance(results[0], str) or isinstance(results[1], str):
    if results[0] != results[1]:
      raise AssertionError(f"expected as of the sound one, {str(results[0])[:150]}, found {str(results[1])[:150]}")
    return
  if results[0][:3] != results[1][:3]:
    raise AssertionError(f"missing or left over: expected {results[0][:3]}, found {results[1][:3]}"[:400])
  if not keeps or results[0][0]:
    return  # other weights, or random experts
  for _, _, _, loaded in results:
    if hasattr(getattr(loaded.model, "hf_quantizer", None), "compressor"):
      loaded.decompress()
  loading.demand_equal(results[0][3].logits(), results[1][3].logits())
