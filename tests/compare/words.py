"""The words of rules: each option and each key of recipes, right and wrong values, with everything that a rule can write."""
import checkpoints as c
from cases import Case, Group, checkpoint
from sources import deepseek_v4, float_linear_of, with_inputs

#: Values of each word of a rule, as options and keys have them; the last are wrong.
VALUES = {
    "fold": ("larger", "strict", "any", "smaller"), "granularity": ("tensor", "row", "block", "column"),
    "block": ("128x128", "32x32", "1x128", "64x64", "128"), "scale_dtype": ("f32", "bf16", "e8m0", "f16"),
    "odd_blocks": ("refuse", "keep", "write", "round"), "arithmetic": ("modelopt", "compressed-tensors", "deepseek"),
    "exact": ("best", "strict", "off", "on"), "input_scale": ("keep", "none", "constant=0.5", "neighbours", "constant", "from nowhere", "constant=-1"),
    "draft_experts": ("keep", "cast", "drop"), "block_scale": ("max", "mse", "four-over-six", "min"), "zero_block": ("producer", "zero", "one"),
    "pattern": ("2:4", "4:8-paired", "1:4"), "method": ("magnitude", "joint", "rtn", "obc"), "sweeps": ("0", "3", "65", "-1", "many")}
DIALECTS = ("modelopt", "compressed-tensors", "deepseek", "deepseek-v4", "gguf")
WRITTEN = ("v7", "v7-packed", "g8", "nvfp4", "fp8", "mxfp8", "mxfp4", "bf16")  # by --to and by rules


def option(key):
  return "--" + key.replace("_", "-")


def option_cases(full):
  """Plans, which take every option, and dry runs."""
  plan = lambda to, *more: ["plan", "{src}", "{work}/x", "--to", to, *more, "-o", "{work}/plan.json"]
  dry = lambda to, *more: ["convert", "{src}", "{out}", "--to", to, *more, "--dry-run"]
  cases = []
  for to in (*WRITTEN, "prune", "quantize"):
    for key, values in VALUES.items():
      for value in values if full else values[:1] + values[-1:]:
        cases.append(Case(f"plan {to} {key} {value}", plan(to, f"{option(key)}={value}")))
    cases.append(Case(f"plan {to} one input scale", plan(to, "--one-input-scale-a-layer")))
    for dialect in DIALECTS:
      cases.append(Case(f"plan {to} dialect {dialect}", plan(to, "--dialect", dialect)))
  for to in WRITTEN:
    for key, values in VALUES.items():
      if key != "pattern":
        cases.append(Case(f"convert {to} {key}", dry(to, f"{option(key)}={values[1]}")))
    for dialect in DIALECTS:
      cases.append(Case(f"convert {to} dialect {dialect}", dry(to, "--dialect", dialect)))
  for command in ("quantize", "prune"):
    for key, values in VALUES.items():
      cases.append(Case(f"{command} {key}", [command, "{src}", "{out}", f"{option(key)}={values[1]}", "--dry-run"]))
  return cases


def rules(*lines, head="format: 1\n"):
  return head + "rules:\n" + "".join(f"  - {line}\n" for line in lines)


def recipe_case(name, text, *more):
  def prepare(at):
    at("{work}/rules.yaml").write_text(text)
  return Case(f"recipe: {name}", ["convert", "{src}", "{out}", "--recipe", "{work}/rules.yaml", *more], prepare)


def quoted(value):
  return value if value.lstrip("-").isdigit() else f'"{value}"'


def key_cases(full):
  cases = []
  for to in (*WRITTEN, "keep"):
    for key, values in VALUES.items():
      for value in values if full else values[:1] + values[-1:]:
        cases.append(recipe_case(f"{to} {key} {value}", rules(f"{{match: experts, to: {to}, {key}: {quoted(value)}}}"), "--dry-run"))
    cases.append(recipe_case(f"{to} one input scale", rules(f"{{match: experts, to: {to}, one_input_scale_a_layer: true}}"), "--dry-run"))
    for dialect in DIALECTS:
      cases.append(recipe_case(f"{to} dialect {dialect}", rules(f"{{match: experts, to: {to}}}", head=f"format: 1\ndialect: {dialect}\n"), "--dry-run"))
  return cases


#: Recipes that are wrong, and others that are written whole.
TEXTS = {
    "nothing": "", "a list": "[1]", "no format": "rules: [{match: experts, to: v7}]", "format 2": rules("{match: experts, to: v7}", head="format: 2\n"),
    "format as text": rules("{match: experts, to: v7}", head='format: "1"\n'), "no rules": "format: 1\n", "empty rules": "format: 1\nrules: []\n",
    "rules no list": "format: 1\nrules: {match: experts, to: v7}\n", "unknown key": rules("{match: experts, to: v7}", head="format: 1\nlayout: v7\n"),
    "unknown key of a rule": rules("{match: experts, to: v7, scale: max}"), "no match": rules("{to: v7}"), "no to": rules("{match: experts}"),
    "unknown to": rules("{match: experts, to: v8}"), "unknown role": rules("{match: expert, to: v7}"), "no such name": rules("{match: model.x, to: v7}"),
    "glob of nothing": rules('{match: "*.nothing.*", to: v7}'), "bad expression": rules('{match: "re:(", to: v7}'),
    "match a number": rules("{match: 3, to: v7}"), "match twice": rules("{match: experts, match: mlp, to: v7}"), "YAML of no kind": "format: [1\n",
    "an anchor": "format: 1\nrules:\n  - &a {match: experts, to: v7}\n", "tabs": "format: 1\nrules:\n\t- {match: experts, to: v7}\n",
    "JSON": '{"format": 1, "rules": [{"match": "experts", "to": "g8"}]}',
    "shard size": rules("{match: experts, to: g8}", head="format: 1\nmax_shard_size: 20kB\n"),
    "shard size of no size": rules("{match: experts, to: g8}", head="format: 1\nmax_shard_size: big\n"),
    "two layouts": rules("{match: experts, to: v7}", "{match: attention, to: g8}"),
    "second never": rules("{match: '*', to: nvfp4}", "{match: experts, to: bf16}"),
    "keep some": rules("{match: 're:.*\\.0\\..*', to: keep}", "{match: experts, to: v7}"),
    "mixed": rules("{match: attention, to: fp8, granularity: row}", "{match: experts, to: nvfp4, block_scale: mse}"),
    "mixed compressed": rules("{match: attention, to: fp8, granularity: row}", "{match: experts, to: nvfp4}", head="format: 1\ndialect: compressed-tensors\n"),
    "MX formats": rules("{match: attention, to: mxfp8}", "{match: experts, to: mxfp4}"), "pruned": rules("{match: experts, to: nvfp4, pattern: '2:4'}"),
    "inputs": rules("{match: experts, to: nvfp4, input_scale: neighbours, one_input_scale_a_layer: true}"),
    "head and embeddings": rules("{match: head, to: nvfp4}", "{match: embeddings, to: bf16}", "{match: experts, to: keep}"),
    "router": rules("{match: router, to: fp8, odd_blocks: write}"), "names": rules("{match: [model.layers.0.self_attn.o_proj, experts], to: nvfp4}"),
    "input scale as a map": rules("{match: experts, to: nvfp4, input_scale: {constant: 1}}"),
    "sweeps as a fraction": rules("{match: experts, to: nvfp4, sweeps: 1.5}")}


def text_cases():
  out = ["{src}", "{out}"]
  cases = [recipe_case(name, text) for name, text in TEXTS.items()]
  for name in ("mixed", "keep some", "MX formats"):
    art = "{of:recipe: %s}" % name
    cases += [Case(f"{name} lint", ["lint", art]), Case(f"{name} validate", ["validate", art, "--source", "{src}"]),
              Case(f"{name} inspect", ["inspect", art, "--stats"]), Case(f"{name} diff", ["diff", "{src}", art]), Case(f"{name} card", ["card", art]),
              Case(f"{name} to bf16", ["convert", art, "{out}", "--to", "bf16"]), Case(f"{name} to v7", ["convert", art, "{out}", "--to", "v7"])]
  for option_words in (["--to", "v7"], ["--fold", "any"], ["--include", "*"], ["--exact", "off"], ["--max-shard-size", "30kB"], ["--dialect", "modelopt"]):
    cases.append(recipe_case(f"JSON with {option_words[0]}", TEXTS["JSON"], *option_words))

  def amax(at):
    c.write_safetensors(at("{work}/amax.safetensors"), {
        f"model.layers.0.mlp.experts.{e}.{leaf}.amax": ("F32", (), c.f32(100.0 + 3 * e)) for e in range(4)
        for leaf in ("gate_proj", "up_proj", "down_proj")})
  cases += [Case("input scales of a file", ["quantize", *out, "--input-scale", "from {work}/amax.safetensors"], amax),
            Case("input scales of a file, one a layer", ["quantize", *out, "--input-scale", "from {work}/amax.safetensors", "--one-input-scale-a-layer"], amax)]

  def masks(at):
    mask = bytes((i // 4 % 2 == 0 and i % 2 == 0) or (i // 4 % 2 == 1 and i % 4 < 2) for i in range(48 * 64))
    c.write_safetensors(at("{work}/masks.safetensors"), {
        f"model.layers.0.mlp.experts.{e}.{leaf}.mask": ("U8", (64, 48) if leaf == "down_proj" else (48, 64), mask) for e in range(4)
        for leaf in ("gate_proj", "up_proj", "down_proj")})
  masked = ["--mask", "{work}/masks.safetensors"]
  cases += [Case("masked v7", ["convert", *out, "--to", "v7", *masked], masks), Case("masked prune", ["prune", *out, "--include", "*experts*", *masked], masks),
            Case("masked quantize", ["quantize", *out, "--include", "*experts*", "--pattern", "2:4", *masked], masks),
            Case("masks of nothing", ["convert", *out, "--to", "g8", *masked], masks)]
  return cases


def all_groups():
  moe = c.model_config("qwen3_moe", 64, 48, experts=4)
  floats = checkpoint(lambda: c.experts(float_linear_of("BF16"), 90), moe)
  nvfp4 = checkpoint(lambda: c.experts(with_inputs, 91), {**moe, "quantization_config": c.MODELOPT})
  mxfp4 = checkpoint(lambda: c.experts(deepseek_v4, 92, block="ffn.experts", names=("w1", "w3", "w2"), intermediate=64, shared="ffn.shared_experts",
                                       prefix=""), c.model_config("deepseek_v4", 64, 64, experts=4))
  for name, source in (("BF16", floats), ("NVFP4", nvfp4), ("MXFP4", mxfp4)):
    full = name != "MXFP4"
    yield Group(f"options {name}", source, option_cases(full), thorough=name != "BF16")
    yield Group(f"keys {name}", source, key_cases(full), thorough=name != "BF16")
    yield Group(f"recipes {name}", source, text_cases())
