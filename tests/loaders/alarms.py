#!/usr/bin/env python3
"""What producers export of every family, linted: lint must find nothing above a note in it.

  TWOFOUR=build/release/tools/twofour alarms.py [--only PART ...] [--work DIR] [--make] [-v]

Exports that are in the folder already are linted as they are. --smollm2 DIR: SmolLM2 in BF16, as
examples/smollm2/make_checkpoint.py writes it. PART: a part of "MODEL PRODUCER KIND", as TINY/llama, modelopt, +KV.
Exit code 1: lint found something, or a producer failed with what CANNOT does not have, or has learned what it has.
"""
import argparse
import contextlib
import copy
import fnmatch
import functools
import importlib.metadata
import io
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are smaller than what a second thread costs
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch

import exports
import models

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ("nvidia-modelopt", "llmcompressor", "compressed-tensors", "transformers", "torch")

# Dense families, with what they need beside the options of all.
DENSE = {name: {} for name in (
    "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "granite", "olmo", "olmo2", "olmo3", "cohere",
    "cohere2", "glm", "glm4", "smollm3", "starcoder2", "stablelm", "exaone4", "ernie4_5", "seed_oss", "nemotron", "arcee",
    "apertus", "lfm2", "bitnet", "persimmon")} | {
        "helium": dict(head_dim=32),
        "hunyuan_v1_dense": dict(head_dim=32),
        "minicpm3": dict(num_key_value_heads=4),
}
# Groups of 128 along the inputs of experts, and of 32 along those of mamba, want more than models.py has.
NARROW = {"moe_intermediate_size": 64, "kv_lora_rank": 64, "q_lora_rank": 64, "o_lora_rank": 64, "mamba_dt_rank": 16}
WIDE = {"moe_intermediate_size": 128, "kv_lora_rank": 128, "q_lora_rank": 128, "o_lora_rank": 128, "mamba_dt_rank": 32}

# What no engine wants quantized, and ModelOpt leaves alone by itself: heads, routers, gates of shared experts, small
# projections of linear attention, steps of state spaces, DeepSeek-V4's compression of keys.
UNQUANTIZED = ["lm_head", "re:.*head$", "re:.*[.]gate([.]wg)?$", "re:.*router.*", "re:.*shared_expert_gate$",
               "re:.*linear_attn[.]in_proj_(a|b|ba)$", "re:.*dt_proj$"]

# Experts and dense MLPs, by the names of models and of files, which differ.
MLPS = "re:.*(mlp|moe|ffn|feed_forward|experts|mixer).*[.](gate_proj|up_proj|down_proj|wgate|w1|w2|w3)$"

# Formats that the program names and does not read: that finding and no other is let pass.
UNREAD = {"W4A8_NVFP4_FP8": {"unsupported-format"}, "W8A16": {"unsupported-format"}}

# What producers cannot do: pattern of "MODEL PRODUCER KIND", words of the failure.
CANNOT = [
    ("TINY/lfm2 modelopt MLP_ONLY", "nothing would be quantized"),  # its MLPs have other names than ModelOpt looks for
    ("TINY/llama4_text llm-compressor *", "no attribute 'text_config'"),  # it knows the model with images alone
    ("TINY/deepseek_v[23] modelopt FP8_PB_WO", "stack expects each tensor to be equal size"),
    ("TINY/glm4_moe_lite modelopt FP8_PB_WO", "stack expects each tensor to be equal size"),
    ("SmolLM2 llm-compressor W?A16", "not divisible by group_size"),  # 576 inputs
]

# Exports that are broken, and the rules that find it: they must, and are let pass.
BROKEN = [
    # A name with a NUL from within transformers 5.17.0 (`lm_head.\\0backbone.pt_name_sentinel`) in place of each name
    # in ignore lists: engines build a quantized head.
    ("TINY/nemotron_h modelopt *", {"engine-lookup", "unused-pattern", "unquantized-not-ignored"}),
    # An output projection that is no linear in transformers, and none of the names in ignore lists: vLLM 0.33.0 builds it
    # quantized.
    ("TINY/deepseek_v4 modelopt *NVFP4*", {"unquantized-not-ignored"}),
    # Names of transformers' modules in ignore, of which files have others.
    ("TINY/deepseek_v4 llm-compressor MIXED", {"unused-pattern"}),
    # Its attention is not among those that are observed: KV scales are memory that was never filled.
    ("TINY/nemotron_h llm-compressor *+KV", {"bad-input-scale", "suspicious-scale"}),
    # ModelOpt brings scales of what reads the same inputs to one, unless formats differ: in these families q and gate do.
    ("TINY/cohere* modelopt MIXED_PRECISION", {"unequal-global-scales"}),
]


@functools.cache
def modelopt_configs():
  """ModelOpt's configurations by name: those of exports.py and what else it exports on a CPU."""
  with contextlib.redirect_stdout(io.StringIO()):  # it prints what it makes
    return make_modelopt_configs()


def make_modelopt_configs():
  import modelopt.torch.quantization as mtq
  with_kv = lambda config, kv: mtq.utils.update_quant_cfg_with_kv_cache_quant(copy.deepcopy(config), kv["quant_cfg"])
  return exports.modelopt_configs() | {
      "MLP_ONLY": mtq.NVFP4_MLP_ONLY_CFG,
      "NVFP4+NVFP4_KV": with_kv(mtq.NVFP4_DEFAULT_CFG, mtq.NVFP4_KV_CFG),
      "FP8": mtq.FP8_DEFAULT_CFG,
      "FP8+KV": with_kv(mtq.FP8_DEFAULT_CFG, mtq.FP8_KV_CFG),
      "FP8_PER_CHANNEL_PER_TOKEN": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
      "FP8_PB_WO": mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
      "MXFP8": mtq.MXFP8_DEFAULT_CFG,
      "MXFP4": mtq.MXFP4_DEFAULT_CFG,
      "W4A8_MXFP4_FP8": mtq.W4A8_MXFP4_FP8_CFG,
      "W4A8_NVFP4_FP8": mtq.W4A8_NVFP4_FP8_CFG,
  }


def llmcompressor_recipes():
  """llm-compressor's recipes by name: those of exports.py and its other schemes."""
  from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
  simple = {name: [QuantizationModifier(targets="Linear", scheme=name, ignore=UNQUANTIZED)]
            for name in ("FP8", "FP8_DYNAMIC", "MXFP4", "MXFP8", "MXFP8A16", "W8A8", "W8A16")}
  kv = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
  with_kv = {f"{name}+KV": [QuantizationModifier(targets="Linear", scheme=name, ignore=UNQUANTIZED, kv_cache_scheme=kv)]
             for name in ("NVFP4", "FP8")}
  return exports.llmcompressor_recipes(UNQUANTIZED) | simple | with_kv | {
      "MIXED": [QuantizationModifier(config_groups={"group_0": exports.group("FP8_DYNAMIC", exports.ATTENTION),
                                                    "group_1": exports.group("NVFP4A16", MLPS)}, ignore=UNQUANTIZED)],
      "GPTQ-NVFP4A16": [GPTQModifier(targets="Linear", scheme="NVFP4A16", ignore=UNQUANTIZED)]}


RECIPES = {"modelopt": modelopt_configs, "llm-compressor": llmcompressor_recipes}


def all_models():
  """Family and options of each model by name."""
  dense = {f"TINY/{family}": (family, options) for family, options in DENSE.items()}
  return dense | {name: (family, {key: WIDE[key] if NARROW.get(key) == value else value for key, value in options.items()})
                  for name, (family, options) in models.MODELS.items()}


class Alarms:
  """Exports in a folder: made, and linted."""

  def __init__(self, options):
    self.options, self.work = options, options.work
    self.work.mkdir(parents=True, exist_ok=True)
    self.linted, self.unread, self.broken, self.alarms, self.failures = 0, 0, 0, [], []

  def wanted(self, name):
    return not self.options.only or any(part in name for part in self.options.only)

  def run(self):
    """Makes what is missing, model by model, and lints each model and its exports."""
    for model in [*all_models(), *(["SmolLM2"] if self.options.smollm2 else [])]:
      keys = [(producer, kind) for producer, recipes in RECIPES.items() for kind in recipes()
              if self.wanted(f"{model} {producer} {kind}") and self.makes_sense(model, kind)]
      if not keys:
        continue
      source = self.make_source(model)
      self.lint(f"{model} source", source, set())
      for producer, kind in keys:
        self.export(model, producer, kind, source)

  def makes_sense(self, model, kind):
    is_dense = model == "SmolLM2" or all_models()[model][0] in {*DENSE, "llama"}
    return not (kind == "EXPERTS_ONLY" and is_dense)

  def folder(self, model):
    return self.work / model.replace("/", "-")

  def make_source(self, model):
    if model == "SmolLM2":
      return self.options.smollm2.resolve()
    folder = self.folder(model) / "source"
    if not (folder / "config.json").exists():
      models.MODELS.update(all_models())
      models.make(model, folder)
      exports.tokenizer().save_pretrained(folder)
    return folder

  def export(self, model, producer, kind, source):
    """Makes an export unless it is there, and lints it."""
    key, folder = f"{model} {producer} {kind}", self.folder(model) / f"{producer}-{kind}"
    reasons = [reason for pattern, reason in CANNOT if fnmatch.fnmatchcase(key, pattern)]
    if not folder.exists():
      try:
        self.write(producer, kind, source, folder)
      except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if not any(reason in text for reason in reasons):
          self.failures.append(f"{key}: {text[:300]}")
          print(f"failed  {self.failures[-1]}", flush=True)
        elif self.options.verbose:
          print(f"cannot  {key}: {text[:100]}", flush=True)
        return
    if reasons:
      self.failures.append(f"{key}: expected '{reasons[0]}', found an export: take it out of CANNOT")
    broken = [rules for pattern, rules in BROKEN if fnmatch.fnmatchcase(key, pattern)]
    found = self.lint(key, folder, UNREAD.get(kind, set()).union(*broken))
    self.broken += bool(broken)
    if broken and not found & broken[0]:
      self.failures.append(f"{key}: expected one of {sorted(broken[0])}, found none: take it out of BROKEN")

  def write(self, producer, kind, source, folder):
    """Writes an export with the tokenizer beside it; nothing is left where the producer fails."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
      torch.manual_seed(3)
      write = exports.export_modelopt if producer == "modelopt" else exports.export_llmcompressor
      write(RECIPES[producer]()[kind], source, part)  # new recipes each time: one runs once
      for file in source.glob("tokenizer*"):
        shutil.copy(file, part)
      part.rename(folder)
    finally:
      shutil.rmtree(part, ignore_errors=True)

  def lint(self, key, folder, let_pass):
    """Keeps what is above a note, but for these rules. Every rule that found something."""
    done = subprocess.run([os.environ["TWOFOUR"], "lint", "--json", str(folder)], capture_output=True, text=True)
    self.linted += 1
    if done.returncode not in (0, 1):
      found = [("stopped", " ".join(done.stderr.split())[:300])]
    else:
      found = [(f["rule"], f"{f['where']}: {f['message']}") for f in json.loads(done.stdout)["findings"]
               if f["severity"] != "note"]
    self.unread += any(rule == "unsupported-format" and rule in let_pass for rule, _ in found)
    alarms = [(key, rule, text) for rule, text in found if rule not in let_pass]
    self.alarms += alarms
    for key, rule, text in alarms[:3]:
      print(f"alarm   {key}: {rule}: {text[:300]}", flush=True)
    if self.options.verbose and not alarms:
      print(f"sound   {key}", flush=True)
    return {rule for rule, _ in found}

  def print_summary(self):
    families = sorted({family for family, _ in all_models().values()})
    print("\nversions: " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    print(f"{len(families)} families: {', '.join(families)}")
    for producer, recipes in RECIPES.items():
      print(f"{producer}: {', '.join(recipes())}")
    print(f"{self.linted} checkpoints linted, of them {self.unread} in formats that are named and not read and "
          f"{self.broken} that producers broke: {len(self.alarms)} false alarms in {len({key for key, _, _ in self.alarms})}; {len(self.failures)} failures")
    for failure in self.failures:
      print(f"failed  {failure}")


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--only", nargs="+", default=[], metavar="PART")
  parser.add_argument("--work", type=pathlib.Path, default=HERE.parent.parent / "build" / "loaders" / "alarms")
  parser.add_argument("--smollm2", type=pathlib.Path)
  parser.add_argument("-v", "--verbose", action="store_true")
  alarms = Alarms(parser.parse_args())
  alarms.run()
  alarms.print_summary()
  return 1 if alarms.alarms or alarms.failures else 0


if __name__ == "__main__":
  sys.exit(main())
