"""Checkpoints of each dialect, broken in each way that repair mends, and loaded after it as the sound one is."""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

import dequantize
import exports
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
    self.is_twice = False  # a second file has all tensors, too
    self.texts = {}  # more files, and others in place of these

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
    for name, text in self.texts.items():
      (folder / name).write_text(text)
    save_file({name: t.contiguous() for name, t in self.tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    if self.is_twice:
      shutil.copy(folder / "model.safetensors", folder / "old.safetensors")

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


def index_of(files, total, lost=None):
  names = {name: "model.safetensors" for name in files.tensors if name != lost}
  files.texts["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": total}, "weight_map": names})


def wrong_total(files):
  index_of(files, 7)


def incomplete_index(files):
  index_of(files, sum(t.numel() * t.element_size() for t in files.tensors.values()), files.one("down_proj.weight_scale"))


def copied_file(files):
  index_of(files, sum(t.numel() * t.element_size() for t in files.tensors.values()))
  files.is_twice = True


def odd_generation(files):
  files.texts["generation_config.json"] = json.dumps({"top_p": 7})


def lose_tokenizer(files):
  files.without.add("tokenizer.json")


def cut_tokenizer(files):
  text = (files.folder / "tokenizer.json").read_text()
  files.texts["tokenizer.json"] = text[:len(text) // 2]


KEY, VALUE = ("k_proj.k_scale", "self_attn.k_scale"), ("v_proj.v_scale", "self_attn.v_scale")


def zero_cache_scale(files):
  name = files.one(*VALUE)
  if name is None:
    return False
  files.tensors[name] = torch.zeros_like(files.tensors[name])


def lose_cache_scales(files):
  """Both of a layer, which only a donor has."""
  return False if any(lose(*endings)(files) is False for endings in (KEY, VALUE)) else None


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
    ("total size wrong", wrong_total, (), False, True),
    ("index incomplete", incomplete_index, (), False, True),
    ("weights twice", copied_file, (), False, True),
    ("generation odd", odd_generation, (), False, True),
    ("tokenizer lost", lose_tokenizer, (), True, True),
    ("tokenizer cut", cut_tokenizer, (), True, True),
    ("cache scale lost", lose(*KEY), (), False, True),
    ("cache scale zero", zero_cache_scale, (), False, True),
    ("cache scales lost", lose_cache_scales, (), True, True),
]


def add_cache_scales(files, kind):
  """Scales of an FP8 cache in an NVFP4 checkpoint."""
  config = files.config["quantization_config"]
  scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
  is_modelopt = kind == "nvfp4-modelopt"
  config["kv_cache_scheme"] = scheme if is_modelopt else {**scheme, "observer": "minmax", "strategy": "tensor", "symmetric": True}
  for layer in range(files.config["num_hidden_layers"]):
    for i, part in enumerate("kv"):
      name = f"{part}_proj.{part}_scale" if is_modelopt else f"{part}_scale"
      scale = torch.tensor(0.03125 * (1 + layer + i / 2))
      files.tensors[f"model.layers.{layer}.self_attn.{name}"] = scale if is_modelopt else scale.to(torch.bfloat16).reshape(1)
  if is_modelopt:
    other = json.loads((files.folder / "hf_quant_config.json").read_text())
    other["quantization"]["kv_cache_quant_algo"] = "FP8"
    files.texts["hf_quant_config.json"] = json.dumps(other, indent=2)


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
      made, sound = self.folder / kind / "made", self.folder / kind / "sound"
      if "moe" in self.model and kind == "mxfp8-modelopt":
        continue  # vLLM 0.33.0 has no such experts
      if not self.report.check(self.name, kind, lambda: self.program.make(command, source, made, *options)):
        continue
      files = Files(made)
      if kind.startswith("nvfp4"):
        add_cache_scales(files, kind)
      files.write(sound)
      exports.tokenizer().save_pretrained(sound)
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
