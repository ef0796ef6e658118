#!/usr/bin/env python3
"""Compares twofour with llm-compressor, ModelOpt and AutoRound: quantizes SmolLM2 by each on the same windows, and measures all by
one loop of transformers in float32.

  peers.py DIR [--twofour BINARY] [--only NAME ...] [--limit WINDOWS] [--device DEVICE] [--python PYTHON]

DIR holds bf16, calibration.safetensors and evaluation.safetensors, as calibrated.sh makes them. A way whose package is not installed
is listed as not run. Figures of the same weights and windows are taken from DIR/peers.json. Writes that file and DIR/peers.md.
Needs torch, transformers and safetensors. Embeddings, norms and head stay as they are, and only weights are quantized.
"""
import argparse
import collections
import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import resource
import shlex
import shutil
import subprocess
import sys
import time

# A way to quantize: its name, what it is, bits of a weight, the package that makes it, and what the package is told.
Way = collections.namedtuple("Way", "name what bits package settings")

DENSE, PRUNED = 4.5, 3.5
TOKENS = ["--tokens", "calibration.safetensors"]
WAYS = [
    Way("twofour-rtn", "each weight for itself", DENSE, "twofour", ["quantize"]),
    Way("twofour-one-pass", "compress, one pass", DENSE, "twofour", ["compress", "--to", "nvfp4", "--sequential", "none", *TOKENS]),
    Way("twofour", "compress, group by group", DENSE, "twofour", ["compress", "--to", "nvfp4", *TOKENS]),
    Way("llmcompressor-rtn", "RTN", DENSE, "llmcompressor", {"scheme": "NVFP4A16"}),
    Way("llmcompressor-gptq", "GPTQ", DENSE, "llmcompressor", {"scheme": "NVFP4A16", "gptq": True}),
    Way("modelopt-max", "max", DENSE, "modelopt", "max"),
    Way("modelopt-awq", "awq_lite", DENSE, "modelopt", "awq_lite"),
    Way("modelopt-hessian", "local_hessian", DENSE, "modelopt", "local_hessian"),
    Way("autoround-rtn", "iters 0", DENSE, "auto_round", 0),
    Way("autoround", "iters 200", DENSE, "auto_round", 200),
    Way("twofour-2of4", "compress --pattern 2:4", PRUNED, "twofour", ["compress", "--to", "nvfp4", "--pattern", "2:4", *TOKENS]),
    Way("llmcompressor-2of4", "SparseGPT 2:4, then RTN", PRUNED, "llmcompressor", {"scheme": "NVFP4A16", "sparse": True}),
]
DISTRIBUTIONS = {"llmcompressor": "llmcompressor", "modelopt": "nvidia-modelopt", "auto_round": "auto-round"}


class NotRun(Exception):
  """A way that cannot be run here, and why."""


# ---- What a process of its own does: it makes the weights of one way, or measures them.


def load_model(folder, device):
  import torch
  import transformers
  return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def windows_of(path):
  from safetensors.torch import load_file
  return load_file(path)["tokens"]


def save_weights(model, source, out):
  """Writes the weights of a model under the names of its source, which must be the same."""
  from safetensors import safe_open
  from safetensors.torch import save_file
  names = set()
  for file in sorted(source.glob("*.safetensors")):
    with safe_open(file, "pt") as tensors:
      names |= set(tensors.keys())
  own = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items() if name in names}
  if missing := sorted(names - set(own)):
    raise SystemExit(f"expected the weights of {source}, found none for {missing[0]}")
  out.mkdir(parents=True)
  save_file(own, out / "model.safetensors", {"format": "pt"})
  for file in source.iterdir():
    if file.suffix != ".safetensors" and file.name != "model.safetensors.index.json":
      shutil.copy(file, out / file.name)


def make_by_llmcompressor(settings, work, out, device, twofour):
  import datasets
  from llmcompressor import oneshot
  from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
  tokens = windows_of(work / "calibration.safetensors")
  model = load_model(work / "bf16", device)
  data = datasets.Dataset.from_dict({"input_ids": tokens.tolist(), "attention_mask": [[1] * tokens.shape[1]] * len(tokens)})
  quantize = (GPTQModifier if settings.get("gptq") else QuantizationModifier)(
      targets="Linear", scheme=settings["scheme"], ignore=["lm_head"])
  recipe = [quantize]
  if settings.get("sparse"):
    from llmcompressor.modifiers.pruning import SparseGPTModifier
    recipe.insert(0, SparseGPTModifier(sparsity=0.5, mask_structure="2:4", targets=["Linear"], ignore=["lm_head"]))
  oneshot(model=model, dataset=data, recipe=recipe, max_seq_length=tokens.shape[1], num_calibration_samples=len(tokens))
  packed = out.with_name(out.name + "-packed")
  model.save_pretrained(packed, save_compressed=True)
  subprocess.run([twofour, "convert", packed, out, "--to", "bf16", "-q", "--force"], check=True)


def make_by_modelopt(settings, work, out, device, twofour):
  import copy

  import modelopt.torch.quantization as mtq
  import torch
  tokens = windows_of(work / "calibration.safetensors")
  model = load_model(work / "bf16", device)
  config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG if settings != "local_hessian" else mtq.NVFP4_W4A4_WEIGHT_LOCAL_HESSIAN_CFG)
  quantizers = config["quant_cfg"]
  if isinstance(quantizers, dict):
    quantizers["*input_quantizer"] = {"enable": False}
  else:
    quantizers[:] = [q for q in quantizers if q.get("quantizer_name") != "*input_quantizer"]
  if settings != "local_hessian":
    config["algorithm"] = settings

  def calibrate(some):
    with torch.no_grad():
      for window in tokens:
        some(input_ids=window[None].to(device))

  mtq.quantize(model, config, calibrate)
  mtq.fold_weight(model)
  save_weights(model, work / "bf16", out)


def make_by_auto_round(settings, work, out, device, twofour):
  import auto_round
  import transformers
  tokens = windows_of(work / "calibration.safetensors")
  model = load_model(work / "bf16", device)
  scheme = {"bits": 4, "group_size": 16, "data_type": "nv_fp", "act_bits": 16, "sym": True}
  data = [{"input_ids": window[None], "attention_mask": window[None] * 0 + 1} for window in tokens]
  rounder = auto_round.AutoRound(model, transformers.AutoTokenizer.from_pretrained(work / "bf16"), scheme=scheme, iters=settings,
                                 dataset=data, seqlen=tokens.shape[1], nsamples=len(tokens), batch_size=8, amp=False,
                                 device_map=device)
  made, _ = rounder.quantize()
  save_weights(made, work / "bf16", out)


def make_by_twofour(settings, work, out, device, twofour):
  """Runs the program in DIR, as the commands of the table say."""
  packed = out.with_name(out.name + "-packed")
  words = [settings[0], "bf16", packed.relative_to(work), *settings[1:], "-q", "--force"]
  if settings[0] == "compress":
    words += ["--device", "cuda" if device.startswith("cuda") else "cpu"]
  subprocess.run([twofour, *words], cwd=work, check=True)
  subprocess.run([twofour, "convert", packed, out, "--to", "bf16", "-q", "--force"], check=True)


MAKERS = {"twofour": make_by_twofour, "llmcompressor": make_by_llmcompressor, "modelopt": make_by_modelopt,
          "auto_round": make_by_auto_round}


def version_of(way, twofour):
  if way.package == "twofour":
    return subprocess.run([twofour, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
  return importlib.metadata.version(DISTRIBUTIONS[way.package])


def make(way, o):
  """Makes the weights; -> version, seconds and bytes of memory."""
  if way.package != "twofour" and importlib.util.find_spec(way.package) is None:
    return {"not_run": f"{DISTRIBUTIONS[way.package]} is not installed"}
  begin = time.monotonic()
  MAKERS[way.package](way.settings, o.work, o.work / "peers" / way.name, o.device, o.twofour)
  figures = {"version": version_of(way, o.twofour), "seconds": time.monotonic() - begin}
  most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  figures["memory"] = most * 1024
  if "torch" in sys.modules and sys.modules["torch"].cuda.is_available() and way.package != "twofour":
    figures["device_memory"] = sys.modules["torch"].cuda.max_memory_allocated()
  return figures


def measure(folder, o):
  """-> for each window the predictions, and the sums of KL(BF16 || x), of negative log-likelihoods and of equal first choices."""
  import torch
  reference, model = load_model(o.work / "bf16", o.device), load_model(folder, o.device)
  torch.backends.cuda.matmul.allow_tf32 = False
  windows = []
  with torch.no_grad():
    for window in windows_of(o.work / "evaluation.safetensors")[:o.limit]:
      ids = window[None].to(o.device)
      p, q = (torch.log_softmax(some(input_ids=ids).logits[0, :-1], -1) for some in (reference, model))
      windows.append({"predictions": len(q),
                      "kl": (p.exp() * (p - q)).sum(-1).double().sum().item(),
                      "loss": -q.gather(1, ids[0, 1:, None]).double().sum().item(),
                      "equal": (p.argmax(-1) == q.argmax(-1)).sum().item()})
  return {"windows": windows}


# ---- What the first process does: it starts the others, and writes the table.


def child(o, *words):
  """Runs this script in a process of its own; -> the object in its last line, or why there is none."""
  command = [o.python, "-B", __file__, str(o.work), "--twofour", o.twofour, "--device", o.device, "--limit", str(o.limit), *words]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  try:
    return json.loads(done.stdout.strip().splitlines()[-1])
  except (IndexError, ValueError):
    return {"not_run": f"it ended with exit code {done.returncode}"}


def digest_of(paths):
  digest = hashlib.sha256()
  for path in paths:
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def mean(windows, key):
  return sum(w[key] for w in windows) / sum(w["predictions"] for w in windows)


def is_tie(some, others):
  """True if the KL of windows differs by less than twice the standard error of the difference."""
  differences = [a["kl"] / a["predictions"] - b["kl"] / b["predictions"] for a, b in zip(some, others, strict=True)]
  count, middle = len(differences), sum(differences) / len(differences)
  if count < 2:
    return True
  variance = sum((d - middle)**2 for d in differences) / (count - 1)
  return abs(middle) <= 2 * math.sqrt(variance / count)


class Table:
  HEAD = ["way", "KL", "perplexity", "agreement, %", "s", "memory, GB", "version"]

  def __init__(self, figures, conditions):
    self.figures, self.conditions = figures, conditions

  def lines(self, bits):
    run = [w for w in WAYS if w.bits == bits and "windows" in self.figures.get(w.name, {})]
    run.sort(key=lambda way: mean(self.figures[way.name]["windows"], "kl"))
    for way in run:
      f = self.figures[way.name]
      windows, best = f["windows"], self.figures[run[0].name]["windows"]
      is_equal = way is not run[0] and is_tie(windows, best)
      memory = f"{f['memory'] / 1e9:.2f}" + (f", device {f['device_memory'] / 1e9:.2f}" if "device_memory" in f else "")
      yield [f"{way.package}: {way.what}", f"{mean(windows, 'kl'):.4f}" + (" (tie with the first)" if is_equal else ""),
             f"{math.exp(mean(windows, 'loss')):.3f}", f"{100 * mean(windows, 'equal'):.1f}", f"{f['seconds']:.0f}", memory,
             f["version"]]
    for way in WAYS:
      if way.bits == bits and "not_run" in self.figures.get(way.name, {}):
        yield [f"{way.package}: {way.what}", f"not run: {self.figures[way.name]['not_run']}", *[""] * (len(self.HEAD) - 2)]

  def markdown(self):
    text = self.conditions + "\n"
    for bits, what in ((DENSE, "Dense NVFP4"), (PRUNED, "2:4 of all linears")):
      lines = list(self.lines(bits))
      if lines:
        rows = [[f"{what}, {bits} bits", *self.HEAD[1:]], ["---"] * len(self.HEAD), *lines]
        text += "\n" + "\n".join("| " + " | ".join(line) + " |" for line in rows) + "\n"
    return text


def arguments():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("work", metavar="DIR", type=lambda path: pathlib.Path(path).resolve())
  parser.add_argument("--twofour", default="twofour", help="the program")
  parser.add_argument("--only", nargs="+", choices=[way.name for way in WAYS], help="default: all")
  parser.add_argument("--limit", type=int, default=16, help="evaluation windows; default: 16")
  parser.add_argument("--device", default="cpu", help="cpu or cuda; default: cpu")
  parser.add_argument("--python", default=sys.executable, help="the interpreter that has the packages")
  parser.add_argument("--make", choices=[way.name for way in WAYS], help=argparse.SUPPRESS)
  parser.add_argument("--measure", type=pathlib.Path, help=argparse.SUPPRESS)
  o = parser.parse_args()
  found = shutil.which(o.twofour)
  if found is None:
    raise SystemExit(f"--twofour: expected the program, found no {o.twofour}")
  o.twofour = os.path.abspath(found)
  return o


def figures_of(way, o, record, known, data):
  """The figures of a way: those that are known for its weights and windows, or new ones."""
  weights = o.work / "peers" / way.name
  made = known.get(f"make {way.name} of {data}")
  if not weights.exists() or made is None:
    for old in (weights, weights.with_name(way.name + "-packed")):
      shutil.rmtree(old, ignore_errors=True)
    made = child(o, "--make", way.name)
    if "not_run" in made:
      return made
    known[f"make {way.name} of {data}"] = made
  key = f"{way.name} {digest_of(sorted(weights.glob('*.safetensors')))} on {o.limit} windows of {data}"
  if key not in known:
    found = child(o, "--measure", str(weights))
    if "not_run" in found:
      return found
    known[key] = found
  record.write_text(json.dumps(known, indent=2) + "\n")
  return made | known[key]


def main():
  o = arguments()
  if o.make:
    return print("\n" + json.dumps(make(next(way for way in WAYS if way.name == o.make), o)))
  if o.measure:
    return print("\n" + json.dumps(measure(o.measure, o)))
  for name in ("bf16", "calibration.safetensors", "evaluation.safetensors"):
    if not (o.work / name).exists():
      raise SystemExit(f"{o.work / name}: expected what calibrated.sh makes, found nothing")
  (o.work / "peers").mkdir(exist_ok=True)
  record = o.work / "peers.json"
  known = json.loads(record.read_text()) if record.exists() else {}
  data = digest_of([o.work / "calibration.safetensors", o.work / "evaluation.safetensors"])
  figures = {}
  for way in WAYS:
    if not o.only or way.name in o.only:
      print(f"{way.package}: {way.what}", flush=True)
      figures[way.name] = figures_of(way, o, record, known, data)
  predictions = next((sum(w["predictions"] for w in f["windows"]) for f in figures.values() if "windows" in f), 0)
  table = Table(figures, f"{o.limit} evaluation windows at most ({predictions} predictions), {o.device}, {datetime.date.today()}, by "
                f"`{shlex.join(['examples/smollm2/peers.py', 'DIR', '--device', o.device])}`. KL of BF16 to each, in nats.")
  (o.work / "peers.md").write_text(table.markdown(), encoding="utf-8")
  print(table.markdown(), end="")


if __name__ == "__main__":
  main()
