"""What producers export of every family, linted: lint must find nothing above a note in it.

  TWOFOUR=build/release/tools/twofour alarms.py [--only PART ...] [--work DIR] [--make] [-v]

Exports that are in the folder already are linted as they are. --make: exports, and does not lint.
"""
import argparse
import copy
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
import warnings

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")

import exports
import models

HERE = pathlib.Path(__file__).resolve().parent
PRODUCERS = {"modelopt": "nvidia-modelopt", "llm-compressor": "llmcompressor"}

# Dense families that need no more than the options of all; beside models.FAMILIES.
DENSE = ("mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "granite", "olmo", "olmo2",
         "olmo3", "cohere", "cohere2", "glm", "glm4", "smollm3", "starcoder2", "stablelm", "exaone4", "hunyuan_v1_dense",
         "ernie4_5", "seed_oss", "nemotron", "helium", "arcee", "apertus", "lfm2", "minicpm3", "bitnet", "persimmon")


def modelopt_configs():
  """ModelOpt's configurations by name: those of exports.py and what else it exports on a CPU."""
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
      "MSE": mtq.NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG,
      "AWQ_LITE": mtq.NVFP4_AWQ_LITE_CFG,
      "FOUR_OVER_SIX": mtq.NVFP4_FOUR_OVER_SIX_CFG,
  }


def llmcompressor_recipes():
  """llm-compressor's recipes by name: those of exports.py and its other schemes of floats."""
  from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
  simple = {name: [QuantizationModifier(targets="Linear", scheme=name, ignore=exports.UNQUANTIZED)]
            for name in ("FP8", "FP8_DYNAMIC", "MXFP4", "MXFP8", "MXFP8A16", "W8A8", "W8A16")}
  kv = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
  return exports.llmcompressor_recipes() | simple | {
      "NVFP4+KV": [QuantizationModifier(targets="Linear", scheme="NVFP4", ignore=exports.UNQUANTIZED, kv_cache_scheme=kv)],
      "FP8+KV": [QuantizationModifier(targets="Linear", scheme="FP8", ignore=exports.UNQUANTIZED, kv_cache_scheme=kv)],
      "GPTQ-NVFP4A16": [GPTQModifier(targets="Linear", scheme="NVFP4A16", ignore=exports.UNQUANTIZED)],
  }


def all_models():
  """Options of each model by name."""
  dense = {f"TINY/{family}": (family, {}) for family in DENSE}
  return models.MODELS | {name: entry for name, entry in dense.items() if name not in models.MODELS}


def make_source(name, folder):
  """The model in BF16 with a tokenizer, if it is not there."""
  if (folder / "config.json").exists():
    return
  models.MODELS.update(all_models())
  models.make(name, folder)
  exports.tokenizer().save_pretrained(folder)


def recipes_of(producer):
  """New ones for each export: a recipe runs once."""
  return modelopt_configs() if producer == "modelopt" else llmcompressor_recipes()


def export(producer, kind, source, folder):
  """Writes an export with the tokenizer beside it; nothing is left where the producer fails."""
  part = folder.with_name(folder.name + ".part")
  shutil.rmtree(part, ignore_errors=True)
  part.mkdir(parents=True)
  try:
    if producer == "modelopt":
      exports.export_modelopt(recipes_of(producer)[kind], source, part)
    else:
      exports.export_llmcompressor(recipes_of(producer)[kind], source, part)
    exports.tokenizer().save_pretrained(part)
    part.rename(folder)
  except BaseException:
    shutil.rmtree(part, ignore_errors=True)
    raise


def first_line(error):
  """Type and first words of an exception."""
  return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def make_all(options):
  """Makes what is missing. Returns the failures, by (model, producer, kind), and writes them beside the exports."""
  failures_file = options.work / "failures.json"
  failures = json.loads(failures_file.read_text()) if failures_file.exists() else {}
  for name in all_models():
    source = options.work / name.replace("/", "-") / "source"
    jobs = [(producer, kind) for producer in PRODUCERS for kind in recipes_of(producer)
            if wanted(options, f"{name} {producer} {kind}") and (kind != "EXPERTS_ONLY" or exports.exists(name, kind))]
    if not jobs:
      continue
    try:
      make_source(name, source)
    except Exception as error:  # transformers lacks the family, or it wants other options
      failures[name] = first_line(error)
      continue
    for producer, kind in jobs:
      folder, key = source.parent / f"{producer}-{kind}", f"{name} {producer} {kind}"
      if folder.exists() or (key in failures and not options.retry):
        continue
      try:
        export(producer, kind, source, folder)
        failures.pop(key, None)
        print(f"made  {key}", flush=True)
      except Exception as error:
        failures[key] = first_line(error)
        print(f"none  {key}  {failures[key]}", flush=True)
      failures_file.write_text(json.dumps(failures, indent=2, sort_keys=True))
  return failures


def wanted(options, name):
  return not options.only or any(part in name for part in options.only)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--only", nargs="+", default=[])
  parser.add_argument("--work", type=pathlib.Path, default=HERE.parent.parent / "build" / "loaders" / "alarms")
  parser.add_argument("--make", action="store_true")
  parser.add_argument("--retry", action="store_true")
  parser.add_argument("-v", "--verbose", action="store_true")
  options = parser.parse_args()
  options.work.mkdir(parents=True, exist_ok=True)
  failures = make_all(options)
  return 0


if __name__ == "__main__":
  sys.exit(main())
