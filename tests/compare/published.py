"""What synth writes: small checkpoints in two dialects, and public checkpoints as they were published, in every format and mixture."""
from cases import ALONE, TO, Case, Group, convert, nvfp4_cases, readers, recipe
from usage import RECIPES

NVFP4 = ("modelopt", "compressed-tensors")
#: Shapes with their dialects.
PUBLICATIONS = {
    "tiny": NVFP4, "qwen3-next": NVFP4, "qwen3-moe": NVFP4, "deepseek-v4": (*NVFP4, "released", "base"), "mixtral": NVFP4,
    "llama": (*NVFP4, "awq", "gptq"), "qwen3.8-flash-next": ("nvidia",), "qwen3.6-35b-a3b": ("nvidia",),
    "qwen3.8-2.4t-a95b": ("llm-compressor",), "qwen3.8-27b": ("unsloth",), "deepseek-v3": ("released",), "kimi-k2-thinking": ("released",),
    "glm-5.2": ("nvidia", "nvidia-mixed", "quark"), "glm-5.3": ("w4a8",), "nemotron-3-super": ("nvidia",), "nemotron-3-ultra": ("nvidia",),
    "nemotron-3.5-lightning": ("nvidia",), "minimax-m3": ("nvidia", "released"), "kimi-k3": ("released", "redhat"),
    "ling-3.0-flash": ("released",), "gpt-oss": ("released",)}
#: Layers, so that some have experts; of others 2.
LAYERS = {"deepseek-v3": "4", "glm-5.2": "4", "glm-5.3": "4", "ling-3.0-flash": "4"}
#: Those that --quick takes: one of each format and mixture.
QUICK = (("deepseek-v4", "released"), ("deepseek-v4", "base"), ("llama", "awq"), ("llama", "gptq"), ("qwen3.8-flash-next", "nvidia"),
    ("qwen3.6-35b-a3b", "nvidia"),
         ("qwen3.8-2.4t-a95b", "llm-compressor"), ("deepseek-v3", "released"), ("glm-5.2", "quark"), ("glm-5.3", "w4a8"), ("nemotron-3-super", "nvidia"),
         ("minimax-m3", "nvidia"), ("kimi-k3", "released"), ("gpt-oss", "released"))
#: What is made of each.
MADE = ("v7", "g8", "nvfp4", "nvfp4-modelopt", "nvfp4-compressed", "bf16", "fp8", "fp8-odd", "fp8-off", "mxfp8", "mxfp4")


def synth(shape, dialect, *more):
  return Case("synth", ["synth", "{out}", "--shape", shape, "--dialect", dialect, *more])


def tiny_groups():
  for dialect in NVFP4:
    for name, more in (("", []), (" layers", ["--layers", "3", "--experts", "5", "--vocab", "40"]), (" seed", ["--seed", "9"]),
                       (" shards", ["--max-shard-size", "50kB"])):
      yield Group(f"synth tiny {dialect}{name}", None, [synth("tiny", dialect, *more), *nvfp4_cases("*o_proj")])


def published_groups():
  for shape, dialects in PUBLICATIONS.items():
    for dialect in dialects:
      yield Group(f"published {shape} {dialect}", None, published_cases(shape, dialect), thorough=(shape, dialect) not in QUICK)


def published_cases(shape, dialect):
  out = ["{src}", "{out}"]
  cases = [synth(shape, dialect, "--small", "--layers", LAYERS.get(shape, "2"), "--vocab", "64"), Case("inspect", ["inspect", "{src}"]),
           Case("inspect stats", ["inspect", "{src}", "--stats"]), Case("lint", ["lint", "{src}"]),
           Case("lint headers", ["lint", "{src}", "--headers-only"]), Case("lint publish", ["lint", "{src}", "--profile", "publish"]),
           Case("diff itself", ["diff", "{src}", "{src}"]), Case("diff headers", ["diff", "{src}", "{src}", "--headers-only"])]
  cases += [convert(name, TO[name]) for name in MADE]
  cases += [Case("prune", ["prune", *out]), Case("quantize", ["quantize", *out]),
            Case("quantize compressed", ["quantize", *out, "--dialect", "compressed-tensors", "--block-scale", "mse"]),
            Case("quantize off", ["quantize", *out, "--exact", "off"]), Case("quantize strict", ["quantize", *out, "--exact", "strict", *ALONE]),
            Case("quantize pruned", ["quantize", *out, "--pattern", "2:4"]),
            Case("quantize neighbours", ["quantize", *out, "--input-scale", "neighbours"]),
            Case("draft kept", ["convert", *out, "--to", "bf16", "--draft-experts", "keep"]),
            Case("draft cast", ["convert", *out, "--to", "nvfp4", "--draft-experts", "cast"]),
            Case("without the draft", ["drop", *out, "--modules", "mtp"]), Case("without the head", ["drop", *out, "--modules", "head"])]
  cases += [recipe(name) for name in RECIPES]
  for name in ("v7", "nvfp4", "bf16", "fp8", "quantize", "mxfp8", "mxfp4", "without the draft"):
    cases += readers(name, full=False)
  for name in ("w4a4-experts", "fp8-attention-nvfp4-experts", "nvfp4-pruned-experts", "v7-experts", "deepseek-v4-nvfp4"):
    cases += readers(f"recipe {name}", full=False)
  cases += [Case("v7 diff", ["diff", "{src}", "{of:v7}"]), Case("quantize diff", ["diff", "{src}", "{of:quantize}"]),
            Case("bf16 diff", ["diff", "{src}", "{of:bf16}"]), Case("quantize card", ["card", "{of:quantize}"]),
            *[Case(f"v7 run {layer}", ["run", "{of:v7}", "--layer", layer, "--random", "3", "-o", "{out}"]) for layer in ("1", "3")],
            convert("bf16 to v7", ["v7"], source="{of:bf16}"), Case("bf16 quantize", ["quantize", "{of:bf16}", "{out}"]),
            convert("quantize to nvfp4", ["nvfp4"], source="{of:quantize}")]
  return cases


def large_groups():
  """Layers of full size."""
  for dialect in NVFP4:
    for shape, more in (("qwen3-next", ["--experts", "10"]), ("qwen3-moe", ["--experts", "8"]), ("mixtral", ["--experts", "2"]),
                        ("llama", []), ("deepseek-v4", ["--experts", "6"])):
      cases = [synth(shape, dialect, "--layers", "1", "--vocab", "64", *more), Case("lint", ["lint", "{src}", "--headers-only"])]
      # The whole battery is for small checkpoints; of large ones both dialects are written and one is converted.
      if shape != "deepseek-v4" and dialect == "modelopt":
        cases += [convert("v7", ["v7"]), convert("g8", ["g8"]), Case("prune", ["prune", "{src}", "{out}"])]
      if shape in ("qwen3-moe", "qwen3-next"):
        cases += [convert(n, TO[n]) for n in ("v7-packed", "nvfp4", "fp8-deepseek", "bf16")] + [
            Case("bf16 quantize", ["quantize", "{of:bf16}", "{out}"])]
      yield Group(f"synth {shape} {dialect}", None, cases, thorough=True)


def usage_group():
  return Group("synth usage", lambda d: d.mkdir(), [Case(n, ["synth", "{out}", *args]) for n, *args in (
      ("no shape",), ("unknown shape", "--shape", "gpt-2"), ("no layers", "--shape", "tiny", "--layers", "0"),
      ("dense with experts", "--shape", "llama", "--experts", "8"), ("one expert", "--shape", "tiny", "--experts", "1"),
      ("few experts", "--shape", "qwen3-next", "--layers", "1", "--experts", "8", "--dry-run"),
      ("headers only", "--shape", "tiny", "--headers-only"), ("unknown dialect", "--shape", "tiny", "--dialect", "gguf"),
      ("dry run", "--shape", "llama", "--dry-run"))] + [
          Case(f"headers of {shape} {dialect}", ["synth", "{out}", "--shape", shape, "--dialect", dialect, "--dry-run", "--layers", "4"])
          for shape, dialects in PUBLICATIONS.items() for dialect in dialects])


def all_groups():
  yield from tiny_groups()
  yield from published_groups()
  yield from large_groups()
  yield usage_group()
