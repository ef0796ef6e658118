"""What is compared: groups of commands over one source, and the differences that are known.

A command is a Case. In its arguments {src} is the group's source, {out} what it writes, {of:NAME} what the case NAME of
the same group wrote, {work} a folder of its own. The cases of a group run in order.
"""
import dataclasses
import json
import pathlib
import shutil
from typing import Callable, Optional

import checkpoints as c

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
INDEX = "model.safetensors.index.json"


@dataclasses.dataclass
class Case:
  name: str
  args: list
  out: bool = False  # writes a directory or a file
  prepare: Optional[Callable] = None  # prepare(places): makes inputs; places maps placeholders to paths


@dataclasses.dataclass
class Group:
  name: str
  source: Optional[Callable]  # source(directory) makes it; None: the first case writes what the others read
  cases: list
  large: bool = False  # left out by --quick


@dataclasses.dataclass
class Known:
  """A difference from 568ef9b that is wanted: by exit code, or in the files that a case writes."""
  fault: str
  reason: str
  cases: tuple  # globs of GROUP/CASE
  exits: tuple = ()  # pairs (old, new)
  files: tuple = ()  # globs


def words_for_new(command):
  """What NEW is told beside, so that it must write what OLD wrote: defaults that 568ef9b did not have."""
  is_fp8 = "--to" in command and command[command.index("--to") + 1:][:1] == ["fp8"]
  return ["--exact", "off", "--odd-blocks", "write"] if is_fp8 else []


# --- What is done with every source -------------------------------------------------------------------------
LAYOUTS = ("v7", "v7-packed", "g8")
TO = {"v7": ["v7"], "v7-packed": ["v7-packed"], "g8": ["g8"], "nvfp4": ["nvfp4"],
      "nvfp4-modelopt": ["nvfp4", "--dialect", "modelopt"],
      "nvfp4-compressed": ["nvfp4", "--dialect", "compressed-tensors"], "bf16": ["bf16"], "fp8": ["fp8"],
      "fp8-deepseek": ["fp8", "--dialect", "deepseek"]}
for _dialect in ("modelopt", "compressed-tensors"):
  for _granularity in ("tensor", "row", "block"):
    TO[f"fp8-{_dialect}-{_granularity}"] = ["fp8", "--dialect", _dialect, "--granularity", _granularity]


def convert(name, to, *options, source="{src}"):
  return Case(name, ["convert", source, "{out}", "--to", *to, *options], True)


def readers(name, source="{src}", run=False, full=True):
  """Commands that read the output of case `name`."""
  art = "{of:%s}" % name
  if not full:
    return [Case(f"{name} lint", ["lint", art]),
            Case(f"{name} validate source", ["validate", art, "--source", source, "--tokens", "0"])]
  cases = [Case(f"{name} inspect", ["inspect", art]), Case(f"{name} inspect stats", ["inspect", art, "--stats"]),
           Case(f"{name} lint", ["lint", art]), Case(f"{name} validate", ["validate", art]),
           Case(f"{name} validate source", ["validate", art, "--source", source, "--tokens", "2"]),
           Case(f"{name} diff", ["diff", source, art]), Case(f"{name} diff back", ["diff", art, source])]
  if run:
    cases += [Case(f"{name} run", ["run", art, "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"], True),
              Case(f"{name} run limit", ["run", art, "--layer", "0", "--random", "2", "--limit", "1.5", "-o", "{out}"], True),
              Case(f"{name} run no such layer", ["run", art, "--layer", "77", "--random", "2", "-o", "{out}"], True)]
  return cases


def back(name):
  art = "{of:%s}" % name
  return [convert(f"{name} to nvfp4", ["nvfp4"], source=art), convert(f"{name} to bf16", ["bf16"], source=art),
          convert(f"{name} to modelopt", TO["nvfp4-modelopt"], source=art),
          convert(f"{name} to compressed", TO["nvfp4-compressed"], source=art),
          convert(f"{name} to v7", ["v7"], source=art), convert(f"{name} to fp8", ["fp8"], source=art),
          Case(f"{name} prune", ["prune", art, "{out}"], True), Case(f"{name} quantize", ["quantize", art, "{out}"], True)]


def looks(full):
  cases = [Case("inspect stats", ["inspect", "{src}", "--stats"]), Case("lint", ["lint", "{src}"])]
  if not full:
    return cases
  return cases + [Case("inspect", ["inspect", "{src}"]), Case("lint headers", ["lint", "{src}", "--headers-only"]),
          Case("lint json", ["lint", "{src}", "--json"]), Case("lint sarif", ["lint", "{src}", "--sarif"]),
          Case("lint html", ["lint", "{src}", "--html", "{work}/lint.html"]),
          Case("diff itself", ["diff", "{src}", "{src}"]), Case("validate", ["validate", "{src}"]),
          Case("run", ["run", "{src}", "--layer", "0", "--random", "2", "-o", "{out}"], True)]


def nvfp4_cases(also=None, full=False):
  cases = looks(full) + [convert(name, to) for name, to in TO.items()]
  cases += [Case("prune", ["prune", "{src}", "{out}"], True),
            Case("prune paired", ["prune", "{src}", "{out}", "--pattern", "4:8-paired"], True),
            Case("quantize", ["quantize", "{src}", "{out}"], True), convert("v7 strict", ["v7"], "--fold", "strict")]
  if not full:
    if also:
      cases.append(convert("v7 also", ["v7"], "--also", also))
    for name in ("v7", "g8", "nvfp4", "prune"):
      cases += readers(name, full=False)
    cases += [convert("v7 to nvfp4", ["nvfp4"], source="{of:v7}"), convert("g8 to bf16", ["bf16"], source="{of:g8}"),
              convert("nvfp4 and back", ["nvfp4"], source="{of:nvfp4}"),
              Case("v7 run", ["run", "{of:v7}", "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"], True),
              Case("g8 run", ["run", "{of:g8}", "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"], True)]
    return cases
  cases += options(["convert", "{src}", "{out}", "--to", "v7"], "v7", also)
  cases += options(["prune", "{src}", "{out}"], "prune", also)
  cases += [convert("bf16 some", ["bf16"], "--include", "*down_proj", "*w2"),
            convert("fp8 some", ["fp8"], "--exclude", "*down_proj", "*w2"), convert("g8 shards", ["g8"], "--max-shard-size", "30kB")]
  for name in LAYOUTS:
    cases += readers(name, run=True) + back(name)
  for name in ("nvfp4", "bf16", "fp8", "prune", "prune paired"):
    cases += readers(name)
  for name in ("nvfp4", "prune"):
    cases += back(name)
  return cases


def options(command, name, also):
  """The options that every command that writes has."""
  cases = [Case(f"{name} {what}", command + list(more), True) for what, *more in (
      ("layer 0", "--include", "re:.*layers\\.0\\..*"), ("but layer 0", "--exclude", "*layers.0.*"),
      ("include nothing", "--include", "no.such.module"), ("shards", "--max-shard-size", "20kB"),
      ("one shard", "--max-shard-size", "5GB"), ("no verify", "--no-verify"), ("direct", "--io", "direct"),
      ("one thread", "-j", "1"), ("many threads", "-j", "7"), ("dry run", "--dry-run"))]
  if also:
    cases.append(Case(f"{name} also", command + ["--also", also], True))
  return cases


def float_cases(full=True):
  cases = looks(full)
  for dialect in ("modelopt", "compressed-tensors"):
    for scale in ("max", "mse", "four-over-six"):
      args = ["quantize", "{src}", "{out}", "--dialect", dialect, "--block-scale", scale]
      name = f"{dialect} {scale}"
      cases.append(Case(name, args, True))
      cases.append(Case(f"{name} pruned", args + ["--pattern", "2:4"], True))
      if not full:
        continue
      other = "modelopt" if dialect == "compressed-tensors" else "compressed-tensors"
      cases.append(Case(f"{name} zero block", args + ["--zero-block", "zero"], True))
      cases.append(Case(f"{name} other arithmetic", args + ["--arithmetic", other], True))
      cases.append(Case(f"{name} other arithmetic zero block pruned",
                        args + ["--arithmetic", other, "--zero-block", "zero", "--pattern", "2:4"], True))
  cases += [convert(n, TO[n]) for n in ("v7", "g8", "nvfp4", "bf16", "fp8", "fp8-deepseek", "fp8-modelopt-tensor")]
  cases.append(Case("prune", ["prune", "{src}", "{out}"], True))
  for name in ("modelopt max", "compressed-tensors mse pruned"):
    cases += readers(name, full=full) + [convert(f"{name} to {to}", TO[to], source="{of:%s}" % name)
                              for to in ("v7", "g8", "nvfp4", "bf16", "fp8")]
    cases.append(Case(f"{name} kept", ["quantize", "{src}", "{out}", "--dialect", name.split()[0],
                                       "--keep-global-scale", "{of:%s}" % name], True))
  if full:
    cases += options(["quantize", "{src}", "{out}"], "quantize", "lm_head") + [tasks("quantize")]
  for name in ("bf16", "fp8"):
    cases += readers(name, full=full)
  return cases


# --- Sources ------------------------------------------------------------------------------------------------
def folder(path):
  return lambda d: shutil.copytree(path, d)


def checkpoint(tensors, config, **more):
  return lambda d: c.write_checkpoint(d, tensors(), config, **more)


def uneven(m, name, n, k):
  """Gate and up with other global scales, ratios that round; the scale of some in shape [1] would be fault 4."""
  scales = {"gate_proj": 0.25, "up_proj": 0.19, "down_proj": 0.125, "w1": 0.5, "w3": 1.0, "w2": 0.3}
  return m.nvfp4(n, k, scales.get(name.rsplit(".", 1)[-1], 0.75))


def plain(m, name, n, k):
  return m.nvfp4(n, k)


def with_inputs(m, name, n, k):
  return {**m.nvfp4(n, k, 0.5), ".input_scale": ("F32", (), c.f32(0.01 + 0.02 * ("up" in name)))}


def compressed(m, name, n, k):
  return {**m.compressed(n, k, 6.0), ".input_global_scale": ("F32", (1,), c.f32(30.0))}


def with_caches(tensors, dialect):
  """KV scales as the dialect stores them."""
  for layer in ("model.layers.0.self_attn.", "model.layers.1.self_attn."):
    for which in ("k", "v"):
      if dialect == "modelopt":
        tensors[f"{layer}{which}_proj.{which}_scale"] = ("F32", (), c.f32(0.5))
      else:
        tensors[f"{layer}{which}_scale"] = ("BF16", (1,), b"\x00\x3f")
  return tensors


def mixtral_names(make, seed):
  return c.experts(make, seed, block="block_sparse_moe.experts", names=("w1", "w3", "w2"), intermediate=64, hidden=96)


def zeros(m, name, n, k):
  """Codes -0 and 0, block scales 0, a whole matrix of zeros."""
  t = m.nvfp4(n, k, 0.5)
  codes, scales = t[".weight"][2], t[".weight_scale"][2]
  return {".weight": ("U8", (n, k // 2), bytes(len(codes) // 4) + b"\x88" * (len(codes) // 4) + codes[len(codes) // 4 * 2:]),
          ".weight_scale": ("F8_E4M3", (n, k // 16), bytes(len(scales) // 8) + scales[len(scales) // 8:]),
          ".weight_scale_2": t[".weight_scale_2"]}


def nvfp4_groups():
  q = {"quantization_config": c.MODELOPT}
  ct = {"quantization_config": c.COMPRESSED}
  moe = lambda **more: c.model_config("qwen3_moe", 64, 48, experts=4, **more)
  yield Group("nvfp4 uneven", checkpoint(lambda: c.experts(uneven, 1, layers=2), {**moe(num_hidden_layers=2), **q}, shards=3,
                                         files=c.SIDE_FILES), nvfp4_cases("*o_proj", True))
  yield Group("nvfp4 inputs", checkpoint(lambda: c.experts(with_inputs, 2), {**moe(), **q}), nvfp4_cases("*q_proj"))
  yield Group("nvfp4 zeros", checkpoint(lambda: c.experts(zeros, 3), {**moe(), **q}, index=False), nvfp4_cases())
  yield Group("nvfp4 shared expert", checkpoint(lambda: c.experts(plain, 4, shared="mlp.shared_expert"), {**moe(), **q}),
              nvfp4_cases("*shared_expert*"))
  yield Group("nvfp4 deepseek names", checkpoint(lambda: c.experts(plain, 5, shared="mlp.shared_experts"),
                                                 {**c.model_config("deepseek_v3", 64, 48, experts=4), **q}),
              nvfp4_cases("*shared_experts*"))
  yield Group("nvfp4 mixtral names", checkpoint(lambda: mixtral_names(uneven, 6), {**c.model_config("mixtral", 96, 64, experts=4), **q}),
              nvfp4_cases("*o_proj"))
  yield Group("nvfp4 not gated", checkpoint(lambda: c.experts(plain, 7, block="mixer.experts", names=("up_proj", "down_proj")),
                                            {**c.model_config("nemotron_h", 64, 48, experts=4, mlp_hidden_act="relu2"), **q}), nvfp4_cases())
  yield Group("nvfp4 odd sizes", checkpoint(lambda: c.experts(plain, 8, hidden=80, intermediate=144, count=3), {
      **c.model_config("qwen3_moe", 80, 144, experts=3), **q}), nvfp4_cases())
  yield Group("nvfp4 small", checkpoint(lambda: c.experts(plain, 9, intermediate=16, hidden=48, count=2,
                                                               names=("gate_proj", "up_proj", "down_proj")), {
      **c.model_config("qwen3_moe", 48, 16, experts=2), **q}), nvfp4_cases())
  yield Group("nvfp4 large matrices", checkpoint(lambda: c.experts(uneven, 10, hidden=512, intermediate=384, count=2), {
      **c.model_config("qwen3_moe", 512, 384, experts=2), **q}, shards=2), nvfp4_cases("*o_proj"), large=True)
  yield Group("nvfp4 dense", checkpoint(lambda: with_caches(c.dense(with_inputs, 11), "modelopt"),
                                        {**c.model_config("llama", 96, 160, layers=2), "quantization_config": {
                                            **c.MODELOPT, "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}},
                                        files={"hf_quant_config.json": {"producer": {"name": "modelopt", "version": "0.45.0"}, "quantization": {
                                            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}}}),
              nvfp4_cases("*o_proj", True))
  yield Group("nvfp4 nested config", checkpoint(lambda: c.dense(plain, 12, prefix="model.language_model."), {
      "model_type": "some_vl", "text_config": {**c.model_config("qwen3", 96, 160, layers=2), **q}}), nvfp4_cases())
  yield Group("compressed experts", checkpoint(lambda: c.experts(compressed, 13, layers=2), {**moe(num_hidden_layers=2), **ct}, shards=2),
              nvfp4_cases("*o_proj"))
  yield Group("compressed dense", checkpoint(lambda: with_caches(c.dense(lambda m, name, n, k: m.compressed(n, k, 3.0), 14), "ct"), {
      **c.model_config("llama", 96, 160, layers=2), **ct}), nvfp4_cases("*o_proj"))
  yield Group("compressed uneven", checkpoint(lambda: c.experts(
      lambda m, name, n, k: m.compressed(n, k, {"up_proj": 5.0}.get(name, 7.0)), 15), {**moe(), **ct}), nvfp4_cases())
  for k_outer in (False, True):
    for what, scalar in (("each", (4,)), ("one", (1,)), ("3-d", (4, 1, 1)), ("none", ())):
      parts = lambda m, name, n, k, k_outer=k_outer, scalar=scalar: m.nvfp4_stack(4, n, k, k_outer, scalar)
      order = "k outer" if k_outer else "n outer"
      if what in ("each", "none"):
        yield Group(f"stack halves {order} {what}", checkpoint(
            lambda parts=parts: c.stacks(parts, 20, 4, 64), {**c.model_config("qwen3_5_moe", 64, 32, experts=4), **q}), nvfp4_cases())
      yield Group(f"stack gpt-oss {order} {what}", checkpoint(
          lambda parts=parts: c.stacks(parts, 21, 4, 64, bias=True), {**c.model_config("gpt_oss", 64, 32, experts=4), **q}), nvfp4_cases(full=k_outer and what == "each"))
  yield Group("stack llama-4", checkpoint(
      lambda: c.stacks(lambda m, name, n, k: m.nvfp4_stack(4, n, k, True, (4,)), 22, 4, 64, block="feed_forward.experts"),
      {**c.model_config("llama4_text", 64, 32, experts=4), **q}), nvfp4_cases())


def float_groups():
  llama = c.model_config("llama", 96, 160, layers=2)
  for dtype in ("BF16", "F16", "F32"):
    yield Group(f"dense {dtype}", checkpoint(lambda dtype=dtype: c.dense(float_linear_of(dtype), 30), llama, shards=2,
                                             files=c.SIDE_FILES), float_cases(dtype == "BF16"))
  moe = c.model_config("qwen3_moe", 64, 48, experts=4)
  yield Group("experts BF16", checkpoint(lambda: c.experts(float_linear_of("BF16"), 31, shared="mlp.shared_expert"), moe), float_cases(False))
  yield Group("mixtral BF16", checkpoint(lambda: mixtral_names(float_linear_of("BF16"), 32), c.model_config("mixtral", 96, 64, experts=4)),
              float_cases(False))
  yield Group("tied head BF16", checkpoint(
      lambda: {n: t for n, t in c.dense(float_linear_of("BF16"), 33).items() if n != "lm_head.weight"},
      {**llama, "tie_word_embeddings": True}), float_cases(False))
  fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}
  for name, scale, dtype, granularity in (
      ("tensor", ".weight_scale", "F32", "tensor"), ("row", ".weight_scale", "F32", "row"), ("row BF16", ".weight_scale", "BF16", "row"),
      ("block", ".weight_scale_inv", "F32", "block"), ("block BF16", ".weight_scale_inv", "BF16", "block"),
      ("E8M0", ".scale", "F8_E8M0", "block")):
    make = lambda m, _, n, k, s=scale, d=dtype, g=granularity: m.fp8(n, k, s, d, g)
    config = {**c.model_config("llama", 160, 272, layers=1), **(fp8 if granularity == "block" else {})}
    yield Group(f"FP8 {name}", checkpoint(lambda make=make: c.dense(make, 34, 160, 272, 1), config), float_cases(granularity == "row"))
  yield Group("FP8 experts", checkpoint(lambda: c.experts(lambda m, _, n, k: m.fp8(n, k, ".weight_scale_inv", "F32", "block"), 35),
                                        {**moe, **fp8}), float_cases(False))
  yield Group("MXFP4 gpt-oss", checkpoint(lambda: c.stacks(gpt_oss_mxfp4(6), 36, 4, 64, bias=True), {
      **c.model_config("gpt_oss", 64, 32, experts=4), "quantization_config": {"quant_method": "mxfp4"}}), float_cases())
  yield Group("MXFP4 wide", checkpoint(lambda: c.stacks(gpt_oss_mxfp4(40), 37, 4, 64, bias=True), {
      **c.model_config("gpt_oss", 64, 32, experts=4), "quantization_config": {"quant_method": "mxfp4"}}), float_cases(False))
  yield Group("MXFP4 compressed", checkpoint(
      lambda: c.experts(lambda m, _, n, k: m.mxfp4((n, k), ".weight_packed", ".weight_scale", ("U8", "U8")), 38, intermediate=64), moe), float_cases(False))
  yield Group("MXFP4 deepseek-v4", checkpoint(
      lambda: c.experts(deepseek_v4, 39, block="ffn.experts", names=("w1", "w3", "w2"), intermediate=64, shared="ffn.shared_experts", prefix=""),
      c.model_config("deepseek_v4", 64, 64, experts=4)), float_cases(False))
  for k_outer in (False, True):
    order = "k outer" if k_outer else "n outer"
    yield Group(f"stack BF16 halves {order}", checkpoint(
        lambda k=k_outer: c.stacks(c.float_stack("BF16", 4, k), 40, 4, 64), c.model_config("qwen3_5_moe", 64, 32, experts=4)), float_cases(False))
    yield Group(f"stack BF16 gpt-oss {order}", checkpoint(
        lambda k=k_outer: c.stacks(c.float_stack("BF16", 4, k), 41, 4, 64, bias=True), c.model_config("gpt_oss", 64, 32, experts=4)), float_cases(False))
  yield Group("stack BF16 llama-4", checkpoint(
      lambda: c.stacks(c.float_stack("BF16", 4, True), 42, 4, 64, block="feed_forward.experts"),
      c.model_config("llama4_text", 64, 32, experts=4)), float_cases(False))


def float_linear_of(dtype):
  return lambda m, name, n, k: {".weight": m.floats(dtype, n, k)}


def gpt_oss_mxfp4(spread):
  def parts(m, name, n, k):
    t = m.mxfp4((4, n, k), "_blocks", "_scales", ("U8", "U8"), spread)
    dtype, _, codes = t["_blocks"]
    return {"_blocks": (dtype, (4, n, k // 32, 16), codes), "_scales": t["_scales"]}
  return parts


def deepseek_v4(m, name, n, k):
  if name.startswith("w"):
    return m.mxfp4((n, k), ".weight", ".scale", ("I8", "F8_E8M0"))
  return m.fp8(n, k, ".scale", "F8_E8M0", "block")


# --- synth --------------------------------------------------------------------------------------------------
def synth_groups():
  for dialect in ("modelopt", "compressed-tensors"):
    for name, more in (("", []), (" layers", ["--layers", "3", "--experts", "5", "--vocab", "40"]), (" seed", ["--seed", "9"]),
                       (" shards", ["--max-shard-size", "50kB"])):
      args = ["synth", "{out}", "--shape", "tiny", "--dialect", dialect, *more]
      yield Group(f"synth tiny {dialect}{name}", None, [Case("synth", args, True), *nvfp4_cases("*o_proj")])
    for shape, more in (("qwen3-next", ["--experts", "10"]), ("qwen3-moe", ["--experts", "8"]), ("mixtral", ["--experts", "2"]),
                        ("llama", []), ("deepseek-v4", ["--experts", "6"])):
      args = ["synth", "{out}", "--shape", shape, "--dialect", dialect, "--layers", "1", "--vocab", "64", *more]
      cases = [Case("synth", args, True), Case("lint", ["lint", "{src}", "--headers-only"])]
      # The whole battery is for small checkpoints; of large ones both dialects are written and one is converted.
      if shape != "deepseek-v4" and dialect == "modelopt":
        cases += [convert("v7", ["v7"]), convert("g8", ["g8"]), Case("prune", ["prune", "{src}", "{out}"], True)]
      if shape in ("qwen3-moe", "qwen3-next"):
        cases += [convert(n, TO[n]) for n in ("v7-packed", "nvfp4", "fp8-deepseek", "bf16")] + [
            Case("bf16 quantize", ["quantize", "{of:bf16}", "{out}"], True)]
      yield Group(f"synth {shape} {dialect}", None, cases, large=True)
  usage = [Case(n, ["synth", "{out}", *args], True) for n, *args in (
      ("no shape",), ("unknown shape", "--shape", "gpt-2"), ("no layers", "--shape", "tiny", "--layers", "0"),
      ("dense with experts", "--shape", "llama", "--experts", "8"), ("one expert", "--shape", "tiny", "--experts", "1"),
      ("few experts", "--shape", "qwen3-next", "--layers", "1", "--experts", "8", "--dry-run"),
      ("headers only", "--shape", "tiny", "--headers-only"), ("unknown dialect", "--shape", "tiny", "--dialect", "gguf"),
      ("dry run", "--shape", "llama", "--dry-run"))]
  yield Group("synth usage", None, usage)


# --- Damage -------------------------------------------------------------------------------------------------
def damaged_sources():
  nan, inf = c.f32(float("nan")), c.f32(float("inf"))
  first = lambda copy: copy.shards[0]
  rename = lambda to: lambda n, t: {to: t}
  return {
      "truncated shard": lambda d: d.file_bytes(first(d), lambda b: b[:-5]),
      "shard without its data": lambda d: d.file_bytes(first(d), lambda b: b[:400]),
      "empty shard": lambda d: d.file_bytes(first(d), lambda b: b""),
      "longer shard": lambda d: d.file_bytes(first(d), lambda b: b + b"\0" * 8),
      "missing shard": lambda d: (d.path / first(d)).unlink(),
      "Git LFS pointer": lambda d: d.file_bytes(first(d), lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
      "HTML for a shard": lambda d: d.file_bytes(first(d), lambda b: b"<!DOCTYPE html><html></html>"),
      "huge header": lambda d: d.file_bytes(first(d), lambda b: b"\xff" * 7 + b"\x7f" + b[8:]),
      "header no JSON": lambda d: d.file_bytes(first(d), lambda b: b[:12] + b"\x01" + b[13:]),
      "NaN block scale": lambda d: d.put_bytes("experts.1.up_proj.weight_scale", 7, b"\x7f"),
      "negative block scale": lambda d: d.put_bytes("experts.1.up_proj.weight_scale", 7, b"\x81"),
      "NaN global scale": lambda d: d.put_bytes("down_proj.weight_scale_2", 0, nan),
      "infinite global scale": lambda d: d.put_bytes("down_proj.weight_scale_2", 0, inf),
      "negative global scale": lambda d: d.put_bytes("down_proj.weight_scale_2", 0, c.f32(-1.0)),
      "zero global scale": lambda d: d.put_bytes("down_proj.weight_scale_2", 0, c.f32(0.0)),
      "no global scale": lambda d: d.tensor("experts.2.up_proj.weight_scale_2", lambda n, t: {}),
      "no block scales": lambda d: d.tensor("experts.2.up_proj.weight_scale", lambda n, t: {}),
      "no codes": lambda d: d.tensor("experts.2.up_proj.weight", lambda n, t: {}),
      "half the block scales": lambda d: d.tensor("experts.2.up_proj.weight_scale",
                                                  lambda n, t: {n: (t[0], (t[1][0] // 2, t[1][1]), t[2][:len(t[2]) // 2])}),
      "codes as I8": lambda d: d.tensor("experts.2.up_proj.weight", lambda n, t: {n: ("I8", t[1], t[2])}),
      "shape against bytes": lambda d: d.file_bytes(first(d), lambda b: b.replace(b'"shape":[64,', b'"shape":[65,', 1)),
      "global scale as BF16": lambda d: d.tensor("down_proj.weight_scale_2", lambda n, t: {n: ("BF16", t[1], t[2][2:])}),
      "hostile name": lambda d: d.tensor("norm.weight", rename("../../x")),
      "index leaves": lambda d: d.json(INDEX, lambda j: j["weight_map"].update({"x": "../x.safetensors"})),
      "index stale": lambda d: d.json(INDEX, lambda j: j["weight_map"].update({"gone.weight": first(d)})),
      "index without a tensor": lambda d: d.json(INDEX, lambda j: j["weight_map"].pop(sorted(j["weight_map"])[3])),
      "index names another file": lambda d: d.json(INDEX, lambda j: j["weight_map"].update({sorted(j["weight_map"])[3]: "other.safetensors"})),
      "index wrong total": lambda d: d.json(INDEX, lambda j: j["metadata"].update(total_size=1)),
      "index empty": lambda d: d.json(INDEX, lambda j: {}),
      "index no JSON": lambda d: d.file_bytes(INDEX, lambda b: b[:-4]),
      "no index": lambda d: (d.path / INDEX).unlink(),
      "no config": lambda d: (d.path / "config.json").unlink(),
      "config a list": lambda d: d.file_bytes("config.json", lambda b: b"[1]"),
      "config no JSON": lambda d: d.file_bytes("config.json", lambda b: b"{"),
      "no quantization config": lambda d: d.json("config.json", lambda j: j.pop("quantization_config") and None),
      "quantized and ignored": lambda d: d.json("config.json", lambda j: j["quantization_config"]["ignore"].append("*o_proj")),
      "group size 32": lambda d: d.json("config.json", lambda j: j["quantization_config"]["config_groups"]["group_0"]["weights"].update(group_size=32)),
      "bad pattern": lambda d: d.json("config.json", lambda j: j["quantization_config"]["ignore"].append("re:(")),
      "expert missing": lambda d: drop_below(d, "experts.1."),
      "projection missing": lambda d: drop_below(d, "experts.1.up_proj."),
      "expert with a zero": lambda d: d.tensor("experts.3.up_proj.weight", lambda n, t: {n: t, n.replace(".3.", ".03."): t}),
      "head quantized": lambda d: d.tensor("lm_head.weight", lambda n, t: c.under("lm_head", c.Maker(5).nvfp4(64, 64))),
      "stray shard": lambda d: c.write_safetensors(d.path / "model-00009-of-00009.safetensors", {"x": ("BF16", (2,), b"\0\0\0\0")}),
      "unfinished sign": lambda d: (d.path / ".twofour-unfinished").write_text(""),
      "dangling link": lambda d: (d.path / "extra.json").symlink_to("nowhere"),
      "shard behind a link": link_shard,
  }


def link_shard(d):
  target = d.path.parent / "blob"
  (d.path / d.shards[0]).rename(target)
  (d.path / d.shards[0]).symlink_to(target)


def drop_below(d, part):
  for shard in d.shards:
    tensors = c.read_safetensors(d.path / shard)
    c.write_safetensors(d.path / shard, {n: t for n, t in tensors.items() if part not in n})
  total, names = 0, {}
  for shard in d.shards:
    for n, t in c.read_safetensors(d.path / shard).items():
      names[n] = shard
      total += len(t[2])
  c.write_json(d.path / INDEX, {"metadata": {"total_size": total}, "weight_map": names})


def damaged_groups():
  config = {**c.model_config("qwen3_moe", 64, 48, experts=4), "quantization_config": c.MODELOPT}
  sound = checkpoint(lambda: c.experts(with_inputs, 50), config, shards=2, files=c.SIDE_FILES)

  def source(damage):
    def make(d):
      sound(d.with_name("sound"))
      damage(c.Copy(d.with_name("sound"), d))
    return make
  for name, damage in damaged_sources().items():
    yield Group(f"damaged: {name}", source(damage), [
        Case("inspect", ["inspect", "{src}", "--stats"]), Case("lint", ["lint", "{src}"]),
        Case("lint headers", ["lint", "{src}", "--headers-only"]), Case("diff", ["diff", "{src}", "{src}"]),
        convert("v7", ["v7"]), convert("g8", ["g8"]), convert("nvfp4", ["nvfp4"]), convert("bf16", ["bf16"]), convert("fp8", ["fp8"]),
        Case("prune", ["prune", "{src}", "{out}"], True), Case("quantize", ["quantize", "{src}", "{out}"], True)])
  floats = checkpoint(lambda: c.dense(float_linear_of("BF16"), 51), c.model_config("llama", 96, 160, layers=2))
  fp8 = checkpoint(lambda: c.dense(lambda m, _, n, k: m.fp8(n, k), 52), c.model_config("llama", 96, 160, layers=2))
  for name, sound_floats, damage in (
      ("NaN weight", floats, lambda d: d.put_bytes("0.mlp.up_proj.weight", 8, b"\xc0\x7f")),
      ("infinite weight", floats, lambda d: d.put_bytes("0.mlp.up_proj.weight", 8, b"\x80\x7f")),
      ("huge weight", floats, lambda d: d.put_bytes("0.mlp.up_proj.weight", 8, b"\x7f\x7f")),
      ("NaN FP8 weight", fp8, lambda d: d.put_bytes("0.mlp.up_proj.weight", 8, b"\x7f")),
      ("NaN FP8 scale", fp8, lambda d: d.put_bytes("0.mlp.up_proj.weight_scale", 8, c.f32(float("nan")))),
      ("negative FP8 scale", fp8, lambda d: d.put_bytes("0.mlp.up_proj.weight_scale", 8, c.f32(-1.0))),
      ("FP8 without scale", fp8, lambda d: d.tensor("0.mlp.up_proj.weight_scale", lambda n, t: {}))):
    def make(d, sound_floats=sound_floats, damage=damage):
      sound_floats(d.with_name("sound"))
      damage(c.Copy(d.with_name("sound"), d))
    yield Group(f"damaged floats: {name}", make, [
        Case("lint", ["lint", "{src}"]), Case("inspect", ["inspect", "{src}", "--stats"]),
        Case("quantize", ["quantize", "{src}", "{out}"], True), Case("quantize mse", ["quantize", "{src}", "{out}", "--block-scale", "mse"], True),
        convert("bf16", ["bf16"]), convert("fp8", ["fp8"])])


def damaged_artifact(damage, of="v7"):
  return lambda at: damage(c.Copy(at("{of:%s}" % of), at("{work}/art")))


def artifact_group():
  """Damaged artifacts, directories that are in the way, several machines."""
  first = lambda d: d.path / d.shards[0]
  flip = lambda at: lambda b: b[:at] + bytes([b[at] ^ 1]) + b[at + 1:]
  cases = [convert("v7", ["v7"]), convert("g8", ["g8"]), convert("nvfp4", ["nvfp4"])]
  for name, damage in {
      "flipped byte": lambda d: d.file_bytes(d.shards[0], flip(-2)),
      "truncated shard": lambda d: d.file_bytes(d.shards[0], lambda b: b[:-3]),
      "missing shard": lambda d: first(d).unlink(),
      "no manifest": lambda d: (d.path / "twofour.json").unlink(),
      "manifest no JSON": lambda d: d.file_bytes("twofour.json", lambda b: b[:-9]),
      "manifest of a later format": lambda d: d.json("twofour.json", lambda j: j.update(format=99)),
      "unfinished sign": lambda d: (d.path / ".twofour-unfinished").write_text(""),
      "changed side file": lambda d: d.file_bytes("tokenizer.json", lambda b: b + b"\n"),
      "missing side file": lambda d: (d.path / "tokenizer.json").unlink(),
      "extra file": lambda d: (d.path / "extra.txt").write_text("x"),
      "no config": lambda d: (d.path / "config.json").unlink(),
      "no index": lambda d: (d.path / INDEX).unlink(),
      "illegal metadata": lambda d: d.put_bytes("w13_meta", 3, b"\x00"),
      "NaN block scale": lambda d: d.put_bytes("w13_scale", 3, b"\x7f"),
      "zero global scale": lambda d: d.put_bytes("w13_global_scale", 0, c.f32(0.0)),
      "without a part": lambda d: d.tensor("w13_meta", lambda n, t: {}),
      "part of another shape": lambda d: d.tensor("w13_comp", lambda n, t: {n: (t[0], (t[1][0], t[1][2], t[1][1]), t[2])})}.items():
    for what, args in {"inspect": ["inspect", "{work}/art"], "lint": ["lint", "{work}/art"], "validate": ["validate", "{work}/art"],
                       "validate source": ["validate", "{work}/art", "--source", "{src}", "--tokens", "2"],
                       "diff": ["diff", "{src}", "{work}/art"],
                       "run": ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"],
                       "nvfp4": ["convert", "{work}/art", "{out}", "--to", "nvfp4"]}.items():
      cases.append(Case(f"{name} {what}", args, what in ("run", "nvfp4"), damaged_artifact(damage)))
  in_the_way = {
      "empty directory": lambda d: d.mkdir(), "a file": lambda d: d.write_text("x"),
      "other files": lambda d: (d.mkdir(), (d / "mine.txt").write_text("x"))}
  for name, put in in_the_way.items():
    for option in ("", "--force", "--resume"):
      cases.append(Case(f"onto {name} {option}".strip(), ["convert", "{src}", "{out}", "--to", "v7", *([option] if option else [])], True,
                        lambda at, put=put: put(at("{out}"))))
  onto = lambda at: shutil.copytree(at("{of:v7}"), at("{out}"))
  for option in ("--force", "--resume", ""):
    for to in ("v7", "g8"):
      cases.append(Case(f"onto an artifact {to} {option}".strip(),
                        ["convert", "{src}", "{out}", "--to", to, *([option] if option else [])], True, onto))
  cases += [
      Case("resume onto a damaged one", ["convert", "{src}", "{out}", "--to", "v7", "--resume"], True,
           lambda at: c.Copy(at("{of:v7}"), at("{out}")).file_bytes("model-00001-of-00001.safetensors", flip(-2))),
      Case("plan", ["plan", "{src}", "{out}/planned", "--to", "v7", "-o", "{work}/v7.plan", "--max-shard-size", "20kB"]),
      Case("diff unlike", ["diff", "{src}", "{of:g8}", "--tolerance", "0.001"]),
      Case("diff fail on none", ["diff", "{src}", "{of:v7}", "--fail-on", "none"]),
      Case("diff fail on cosine", ["diff", "{src}", "{of:v7}", "--fail-on", "cosine<0.5"]),
      Case("diff fail on snr", ["diff", "{src}", "{of:v7}", "--fail-on", "snr<90dB"]),
      Case("diff include", ["diff", "{src}", "{of:v7}", "--include", "*layers.0*"]),
      Case("diff include nothing", ["diff", "{src}", "{of:v7}", "--include", "no.such"]),
      Case("inspect byte", ["inspect", "{of:v7}", "--at", "model.layers.0.mlp.experts.w13_comp:100"]),
      Case("inspect byte outside", ["inspect", "{of:v7}", "--at", "model.layers.0.mlp.experts.w13_comp:1000000000"]),
      Case("inspect values", ["inspect", "{of:v7}", "--values", "model.layers.0.mlp.experts.w2[0, 1, 0:16]"]),
      Case("inspect tensor", ["inspect", "{src}", "--tensor", "*norm*"]),
      Case("inspect no such tensor", ["inspect", "{src}", "--tensor", "no.such"]),
      Case("inspect shard", ["inspect", "{src}/model-00001-of-00002.safetensors"]),
      Case("lint shard", ["lint", "{src}/model-00001-of-00002.safetensors"]),
      Case("lint rules", ["lint", "--rules"]), Case("lint no such rule", ["lint", "{src}", "--rule", "no-such=off"]),
      Case("lint against", ["lint", "{src}", "--against", "{of:nvfp4}"]),
      Case("lint all errors off", ["lint", "{src}", "--rule", "missing-sidecar=off"])]
  for plan in ("v7", "nvfp4", "prune"):
    cases.append(tasks(plan))
  config = {**c.model_config("qwen3_moe", 64, 48, experts=4), "quantization_config": c.MODELOPT}
  return Group("artifacts", checkpoint(lambda: c.experts(uneven, 60), config, shards=2, files=c.SIDE_FILES), cases)


def tasks(to):
  """A plan made, its tasks done, merged: all by the same binary, in one case's directory."""
  return Case(f"tasks {to}", [
      ["plan", "{src}", "{out}", "--to", to, "-o", "{work}/plan.json", "--max-shard-size", "20kB", "--tasks", "2"],
      ["convert", "--plan", "{work}/plan.json", "--task", "1/2"], ["merge", "{out}"],
      ["convert", "--plan", "{work}/plan.json", "--task", "0/2"], ["merge", "{out}"], ["validate", "{out}"]], True)


def usage_group():
  commands = {
      "nothing": [], "help": ["--help"], "version": ["--version"], "unknown command": ["convrt"], "unknown option": ["convert", "--tu", "v7"],
      "no source": ["convert"], "no target": ["convert", "{src}", "{out}"], "unknown layout": ["convert", "{src}", "{out}", "--to", "v8"],
      "missing source": ["convert", "{work}/none", "{out}", "--to", "v7"], "onto itself": ["convert", "{src}", "{src}", "--to", "v7"],
      "into itself": ["convert", "{src}", "{src}/inside", "--to", "v7"], "force and resume": ["convert", "{src}", "{out}", "--to", "v7", "--force", "--resume"],
      "no jobs": ["convert", "{src}", "{out}", "--to", "v7", "-j", "0"], "shard size no number": ["convert", "{src}", "{out}", "--to", "v7", "--max-shard-size", "big"],
      "shard size zero": ["convert", "{src}", "{out}", "--to", "v7", "--max-shard-size", "0"],
      "dialect of v7": ["convert", "{src}", "{out}", "--to", "v7", "--dialect", "modelopt"],
      "granularity of bf16": ["convert", "{src}", "{out}", "--to", "bf16", "--granularity", "row"],
      "fold of bf16": ["convert", "{src}", "{out}", "--to", "bf16", "--fold", "strict"],
      "deepseek of nvfp4": ["convert", "{src}", "{out}", "--to", "nvfp4", "--dialect", "deepseek"],
      "deepseek by row": ["convert", "{src}", "{out}", "--to", "fp8", "--dialect", "deepseek", "--granularity", "row"],
      "bad regex": ["convert", "{src}", "{out}", "--to", "v7", "--include", "re:("], "exclude all": ["convert", "{src}", "{out}", "--to", "v7", "--exclude", "*"],
      "also nothing": ["convert", "{src}", "{out}", "--to", "v7", "--also", "no.such"], "task without plan": ["convert", "{src}", "{out}", "--to", "v7", "--task", "0/2"],
      "no such plan": ["convert", "--plan", "{work}/none", "--task", "0/2"], "prune pattern": ["prune", "{src}", "{out}", "--pattern", "1:4"],
      "quantize pattern": ["quantize", "{src}", "{out}", "--pattern", "4:8-paired"], "prune nothing": ["prune", "{src}"],
      "validate a checkpoint": ["validate", "{src}"], "validate nothing": ["validate", "{work}/none"], "lint nothing": ["lint", "{work}/none"],
      "lint no argument": ["lint"], "diff one": ["diff", "{src}"], "diff missing": ["diff", "{src}", "{work}/none"],
      "run a checkpoint": ["run", "{src}", "--layer", "0", "--random", "2", "-o", "{out}"],
      "merge a checkpoint": ["merge", "{src}"], "bad instruction set": ["inspect", "{src}", "--device", "tpu"],
      "inspect no argument": ["inspect"], "inspect missing": ["inspect", "{work}/none"], "json": ["inspect", "{src}", "--json"],
      "quiet": ["inspect", "{src}", "-q"], "inspect html": ["inspect", "{src}", "--html", "{work}/x.html"],
      "help of convert": ["convert", "--help"], "completion": ["completion", "bash"], "completion of nothing": ["completion", "tcsh"],
      "man": ["man", "{out}"], "device cuda": ["convert", "{src}", "{out}", "--to", "v7", "--device", "cuda"],
      "help as a command": ["help"], "short version": ["-V"]}
  config = {**c.model_config("qwen3_moe", 64, 48, experts=4), "quantization_config": c.MODELOPT}
  # The pages of man are documentation, not an output whose bytes are promised.
  return Group("usage", checkpoint(lambda: c.experts(plain, 61), config),
               [Case(n, a, "{out}" in a and n != "man") for n, a in commands.items()])


# --- Faults of 568ef9b: these cases exist to differ ------------------------------------------------------------
def fault_groups():
  q = {"quantization_config": c.MODELOPT}
  nv = lambda m, name, n, k: m.nvfp4_stack(4, n, k, True, (4,))
  read = [Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]), convert("g8", ["g8"]), convert("nvfp4", ["nvfp4"]),
          convert("bf16", ["bf16"]), Case("prune", ["prune", "{src}", "{out}"], True)]
  floats = [Case("lint", ["lint", "{src}"]), Case("quantize", ["quantize", "{src}", "{out}"], True)]
  gpt_oss, llama4 = c.model_config("gpt_oss", 64, 32, experts=4), c.model_config("llama4_text", 64, 32, experts=4)
  yield Group("fault 1: gpt-oss without bias", checkpoint(lambda: c.stacks(nv, 70, 4, 64), {**gpt_oss, **q}), read)
  yield Group("fault 1: halves with bias", checkpoint(lambda: c.stacks(nv, 71, 4, 64, bias=True), {**llama4, **q}), read)
  yield Group("fault 1: no model type", checkpoint(lambda: c.stacks(nv, 72, 4, 64), {"hidden_size": 64, **q}), read)
  yield Group("fault 1: BF16 without bias", checkpoint(lambda: c.stacks(c.float_stack("BF16", 4, True), 73, 4, 64), gpt_oss), floats)
  yield Group("fault 1: MXFP4 without bias", checkpoint(lambda: c.stacks(gpt_oss_mxfp4(6), 74, 4, 64), gpt_oss), floats)
  moe = {**c.model_config("qwen3_moe", 64, 48, experts=4), **q}
  term = "model.layers.0.mlp.experts.0.up_proj"
  for name, extra in {"zero points": {".weight_zero_point": ("U8", (48, 4), b"\x08" * 192)},
                      "activation order": {".weight_g_idx": ("I32", (64,), b"".join(i.to_bytes(4, "little") for i in reversed(range(64))))},
                      "low rank": {".svdquant_lora_a": ("BF16", (4, 64), b"\x00\x3f" * 256), ".svdquant_lora_b": ("BF16", (48, 4), b"\x00\x3f" * 192)},
                      "pre_quant_scale": {".pre_quant_scale": ("BF16", (64,), b"\x00\x40" * 64)}}.items():
    yield Group(f"fault 2: {name}", checkpoint(lambda extra=extra: {**c.experts(plain, 75), **c.under(term, extra)}, moe), read)
  yield Group("fault 2: Hadamard", checkpoint(lambda: c.experts(compressed, 76), {
      **c.model_config("qwen3_moe", 64, 48, experts=4),
      "quantization_config": {**c.COMPRESSED, "transform_config": {"config_groups": {"R1": {"type": "hadamard", "apply": [
          {"targets": ["Linear"], "location": "weight_input"}]}}}}}), read)
  mixtral = {**c.model_config("mixtral", 96, 64, experts=4), **q}
  yield Group("fault 3", checkpoint(lambda: mixtral_names(plain, 77), mixtral), [
      convert("v7", ["v7"]), Case("diff by the file's name", ["diff", "{src}", "{of:v7}", "--include", "*.w3"])])
  one = lambda m, name, n, k: m.nvfp4(n, k, 0.25, (1,))
  yield Group("fault 4", checkpoint(lambda: c.experts(one, 78), moe), [
      convert("nvfp4", ["nvfp4"]), convert("and back", ["nvfp4"], source="{of:nvfp4}"), convert("v7", ["v7"]),
      convert("v7 and back", ["nvfp4"], source="{of:v7}")])
  far = lambda m, name, n, k: m.nvfp4(n, k, 1e-5 if "up" in name else 1.0)
  yield Group("fault 6", checkpoint(lambda: c.experts(far, 79), moe), [
      Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]), convert("g8", ["g8"]), convert("v7 any", ["v7"], "--fold", "any")])

  def edit_plan(change):
    def prepare(at):
      plan = json.loads(pathlib.Path(at("{of:plan}")).read_text())
      change(plan)
      at("{work}/edited").write_text(json.dumps(plan))
    return prepare
  edits = {"files": lambda p: p.update(files=7), "files as text": lambda p: p.update(files="1"), "files negative": lambda p: p.update(files=-1),
           "shard size": lambda p: p["fingerprint"]["recipe"].update(max_shard_size=4999999999), "format": lambda p: p.update(format=99),
           "fraction": lambda p: p["fingerprint"]["recipe"].update(max_shard_size=5000000000.5)}
  yield Group("fault 9", checkpoint(lambda: c.experts(plain, 80), moe), [
      convert("v7", ["v7"]), Case("plan", ["plan", "{src}", "{work}/x", "--to", "v7", "-o", "{out}"]),
      *[Case(f"edited plan: {name}", ["convert", "--plan", "{work}/edited", "--task", "0/1"], prepare=edit_plan(change))
        for name, change in edits.items()],
      Case("changed bytes run", ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"], False,
           damaged_artifact(lambda d: d.put_bytes("w13_comp", 5, b"\x11"))),
      Case("changed bytes convert", ["convert", "{work}/art", "{out}", "--to", "nvfp4"], False,
           damaged_artifact(lambda d: d.put_bytes("w13_comp", 5, b"\x11"))),
      Case("man in a circle of links", ["man", "{work}/circle"], prepare=lambda at: pathlib.Path(at("{work}/circle")).symlink_to("circle")),
      Case("long argument", ["convert", "{src}", "{out}", "--to", "x" * 100000])])
  mixed_shape = lambda m, name, n, k: m.nvfp4(n, k, 0.25, (1,) if name == "down_proj" and m.random.random() < 0.5 else ())
  yield Group("fault 10", checkpoint(lambda: c.experts(mixed_shape, 81), moe), [
      Case("lint", ["lint", "{src}"]), Case("lint headers", ["lint", "{src}", "--headers-only"]), convert("v7", ["v7"])])
  for name, change in {"NaN": {"norm_topk_prob": float("nan")}, "text": {"num_experts_per_tok": "2"},
                       "fraction": {"num_experts_per_tok": 1.5}, "missing": {"num_experts_per_tok": None},
                       "norm as number": {"norm_topk_prob": 2}, "norm missing": {"norm_topk_prob": None},
                       "experts as text": {"num_experts": "4", "num_local_experts": "4", "n_routed_experts": "4"},
                       "experts as fraction": {"num_experts": 4.5, "num_local_experts": 4.5, "n_routed_experts": 4.5},
                       "layers as text": {"num_hidden_layers": "1"}, "layers as fraction": {"num_hidden_layers": 1.5},
                       "layers missing": {"num_hidden_layers": None}}.items():
    config = {k: v for k, v in {**moe, **change}.items() if v is not None}
    hidden = {"hidden": ("F32", (3, 64), c.f32(*[(i % 17 - 8) / 8 for i in range(192)]))}
    yield Group(f"fault 11: {name}", checkpoint(lambda: c.experts(plain, 82), config), [
        Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]),
        Case("run router", ["run", "{of:v7}", "--layer", "0", "--input", "{work}/hidden.safetensors", "-o", "{out}"], True,
             lambda at, hidden=hidden: c.write_safetensors(at("{work}/hidden.safetensors"), hidden)),
        Case("run random", ["run", "{of:v7}", "--layer", "0", "--random", "2", "-o", "{out}"], True)])

  def unknown_layout(d):
    d.file_bytes("twofour.json", lambda b: b.replace(b'"v7"', b'"v9"'))
    d.file_bytes("config.json", lambda b: b.replace(b'"v7"', b'"v9"'))
  yield Group("unknown layout", checkpoint(lambda: c.experts(plain, 83), moe), [convert("v7", ["v7"])] + [
      Case(n, args, False, damaged_artifact(unknown_layout)) for n, args in {
          "run": ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"], "lint": ["lint", "{work}/art"],
          "inspect": ["inspect", "{work}/art"], "convert": ["convert", "{work}/art", "{out}", "--to", "nvfp4"]}.items()])


KNOWN = [
    Known("1", "what interleaves gate and up is asked of model_type, too; where it and the tensors disagree, or neither decides, a refusal",
          ("fault 1: */*",), exits=((0, 2), (0, 1))),
    Known("2", "tensors and settings that change what a weight means are refused", ("fault 2: */*",), exits=((0, 2), (0, 1))),
    Known("3", "diff takes patterns in the names of the files (not in the issue's list, but its exit code must change)",
          ("fault 3/diff by the file's name",), exits=((2, 0), (2, 1))),
    Known("4", "a global scale of shape [1] comes back as [1]", ("fault 4/* back", "fault 4/v7 and back"), files=("*.safetensors", INDEX)),
    Known("6", "a fold that changes a matrix by more than 10 % is refused unless --fold any", ("fault 6/*",), exits=((0, 2), (2, 0), (0, 1), (1, 0))),
    Known("9", "edited plans, changed artifacts, links in a circle and overlong arguments are refused", ("fault 9/*", "artifacts/flipped byte run", "artifacts/flipped byte nvfp4"), exits=((0, 2),)),
    Known("10", "global scales of [] and [1] may stand beside each other", ("fault 10/lint*",), exits=((1, 0),)),
    Known("11", "counts and norm_topk_prob that are no counts and no truth value are refused", ("fault 11: */*",),
          exits=((0, 2), (0, 1))),
    Known("16", "synth takes what its help says; twofour help and -V exist", ("synth usage/few experts", "usage/help as a command", "usage/short version"),
          exits=((2, 0),)),
    Known("cuda", "convert --device cuda is gone; differs only on a machine with a device", ("usage/device cuda",), exits=((0, 2),)),
    Known("mixed", "quantize takes the linears beside NVFP4 and leaves that as it is; before, it refused both together",
          ("stack *s */quantize", "stack llama-4/quantize", "synth tiny */quantize", "stack gpt-oss k outer each/* quantize"), exits=((2, 0),)),
    Known("quantized layouts", "layouts take every format: what is not NVFP4 is quantized first",
          tuple(f"{group}/{to}" for to in ("v7", "g8") for group in ("FP8 *", "MXFP4 *", "* BF16*", "dense F16", "dense F32")),
          exits=((2, 0),)),
    Known("widened", "bf16 widens every format, not NVFP4 alone", ("FP8 */bf16", "MXFP4 */bf16"), exits=((2, 0),)),
    Known("stacks", "BF16 experts are written as their family stores them: stacked, and K outermost where it has it so",
          ("stack gpt-oss n outer*/bf16", "stack gpt-oss n outer*/g8 to bf16", "MXFP4 gpt-oss/* to bf16", "MXFP4 wide/* to bf16",
           "stack BF16 gpt-oss */* to bf16", "stack BF16 llama-4/* to bf16"), files=("*.safetensors", INDEX)),
    Known("FP8 of experts", "modelopt's FP8 of experts has one scale a matrix in every engine that reads it",
          tuple(f"{group}/fp8-modelopt-{by}" for by in ("row", "block") for group in (
              "compressed [eu]*", "golden *", "nvfp4 de[!n]*", "nvfp4 [!dn]*", "nvfp4 not gated", "stack *", "synth tiny *")),
          exits=((0, 2),)),
    Known("FP8 of MXFP4", "vLLM reads experts of DeepSeek-V4 as MXFP4 in the deepseek dialect; deepseek-v4 is the one for FP8",
          ("MXFP4 deepseek-v4/fp8-deepseek",), exits=((0, 2),)),
    Known("KV scales", "without a config that says FP8 of the KV cache, bf16 leaves no scales of it behind",
          ("compressed dense/*bf16*", "nvfp4 dense/*bf16*"), exits=((0, 1),), files=("*.safetensors", INDEX)),
    Known("names", "unquantized linears are listed by name: engines do not find parts of a fused layer by a glob",
          ("synth */synth", "synth usage/headers only", "synth */nvfp4*", "synth */lint"), exits=((0, 1),),
          files=("config.json", "hf_quant_config.json")),
    Known("quantized head", "a quantized head is a target, and a list of unquantized modules does not name it",
          ("damaged: head quantized/*",), files=("config.json",)),
    Known("own dialect", "a source in the dialect that is asked for is copied, with a warning; before, it was refused",
          ("*/nvfp4-modelopt", "*/nvfp4-compressed", "*/nvfp4 to modelopt", "*/nvfp4 to compressed", "*/prune to modelopt",
           "*/prune to compressed"), exits=((2, 0),)),
    Known("wide MXFP4", "of MXFP4 whose scales are far apart NVFP4 rounds only the smallest blocks; before, it was quantized anew",
          ("MXFP4 wide/*",), exits=((0, 1),), files=("*.safetensors",)),
    Known("lint: numbers", "lint knows weights that no training gives: bytes drawn evenly, one maximum in all matrices, experts and layers far from others",
          ("FP8 */fp8 lint", "FP8 [be]*/lint", "MXFP4 d*/fp8 lint", "dense F16/lint", "dense F16/fp8 lint",
           "dense */modelopt max lint", "[emt]* BF16/modelopt max lint", "*/compressed-tensors mse pruned lint",
           "damaged floats: huge weight/lint", "nvfp4 [du]*/fp8 lint", "nvfp4 uneven/bf16 lint"), exits=((0, 1),)),
    Known("lint: config", "lint holds config.json against the tensors: these lack sizes, formats, or promises of the inputs' scales",
          ("FP8 [Ert]*/lint*", "MXFP4 [cdg]*/lint*", "MXFP4 [cg]*/* lint", "stack BF16 [gl]*/lint", "stack BF16 [gl]*/fp8 lint",
           "stack gpt-oss k outer each/* lint", "damaged: */lint headers"), exits=((0, 1),)),
    Known("lint: inputs", "a config whose groups do not name inputs promises no scales of them", ("nvfp4 uneven/lint headers",), exits=((1, 0),)),
    Known("router's bias", "synth gives DeepSeek-V4's routers their bias where no table chooses experts", ("synth deepseek-v4 */synth",),
          files=("*.safetensors", INDEX)),
]


def all_groups():
  for name in ("modelopt-qwen3", "modelopt-mixtral-uneven", "compressed-tensors-qwen3"):
    yield Group(f"golden {name}", folder(GOLDEN / name / "src"), nvfp4_cases("*o_proj", name != "modelopt-mixtral-uneven"))
  yield from synth_groups()
  yield from nvfp4_groups()
  yield from float_groups()
  yield from damaged_groups()
  yield artifact_group()
  yield usage_group()
  yield from fault_groups()
