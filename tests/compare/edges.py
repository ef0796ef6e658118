"""Sources at the edge of what is taken, plans that were edited, settings that are no numbers."""
import json
import pathlib

import checkpoints as c
from cases import Case, Group, checkpoint, convert, damaged_case
from sources import compressed, gpt_oss_mxfp4, mixtral_names, plain


def all_groups():
  q = {"quantization_config": c.MODELOPT}
  nv = lambda m, name, n, k: m.nvfp4_stack(4, n, k, True, (4,))
  read = [Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]), convert("g8", ["g8"]), convert("nvfp4", ["nvfp4"]),
          convert("bf16", ["bf16"]), Case("prune", ["prune", "{src}", "{out}"])]
  floats = [Case("lint", ["lint", "{src}"]), Case("quantize", ["quantize", "{src}", "{out}"])]
  gpt_oss, llama4 = c.model_config("gpt_oss", 64, 32, experts=4), c.model_config("llama4_text", 64, 32, experts=4)
  yield Group("stacks: gpt-oss without bias", checkpoint(lambda: c.stacks(nv, 70, 4, 64), {**gpt_oss, **q}), read)
  yield Group("stacks: halves with bias", checkpoint(lambda: c.stacks(nv, 71, 4, 64, bias=True), {**llama4, **q}), read)
  yield Group("stacks: no model type", checkpoint(lambda: c.stacks(nv, 72, 4, 64), {"hidden_size": 64, **q}), read)
  yield Group("stacks: BF16 without bias", checkpoint(lambda: c.stacks(c.float_stack("BF16", 4, True), 73, 4, 64), gpt_oss), floats)
  yield Group("stacks: MXFP4 without bias", checkpoint(lambda: c.stacks(gpt_oss_mxfp4(6), 74, 4, 64), gpt_oss), floats)
  moe = {**c.model_config("qwen3_moe", 64, 48, experts=4), **q}
  term = "model.layers.0.mlp.experts.0.up_proj"
  for name, extra in {"zero points": {".weight_zero_point": ("U8", (48, 4), b"\x08" * 192)},
                      "activation order": {".weight_g_idx": ("I32", (64,), b"".join(i.to_bytes(4, "little") for i in reversed(range(64))))},
                      "low rank": {".svdquant_lora_a": ("BF16", (4, 64), b"\x00\x3f" * 256), ".svdquant_lora_b": ("BF16", (48, 4), b"\x00\x3f" * 192)},
                      "pre_quant_scale": {".pre_quant_scale": ("BF16", (64,), b"\x00\x40" * 64)}}.items():
    yield Group(f"terms: {name}", checkpoint(lambda extra=extra: {**c.experts(plain, 75), **c.under(term, extra)}, moe), read)
  yield Group("terms: Hadamard", checkpoint(lambda: c.experts(compressed, 76), {
      **c.model_config("qwen3_moe", 64, 48, experts=4),
      "quantization_config": {**c.COMPRESSED, "transform_config": {"config_groups": {"R1": {"type": "hadamard", "apply": [
          {"targets": ["Linear"], "location": "weight_input"}]}}}}}), read)
  mixtral = {**c.model_config("mixtral", 96, 64, experts=4), **q}
  yield Group("names of w1 and w3", checkpoint(lambda: mixtral_names(plain, 77), mixtral), [
      convert("v7", ["v7"]), Case("diff by the file's name", ["diff", "{src}", "{of:v7}", "--include", "*.w3"])])
  one = lambda m, name, n, k: m.nvfp4(n, k, 0.25, (1,))
  yield Group("global scale of shape [1]", checkpoint(lambda: c.experts(one, 78), moe), [
      convert("nvfp4", ["nvfp4"]), convert("and back", ["nvfp4"], source="{of:nvfp4}"), convert("v7", ["v7"]),
      convert("v7 and back", ["nvfp4"], source="{of:v7}")])
  far = lambda m, name, n, k: m.nvfp4(n, k, 1e-5 if "up" in name else 1.0)
  yield Group("scales far apart", checkpoint(lambda: c.experts(far, 79), moe), [
      Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]), convert("g8", ["g8"]), convert("v7 any", ["v7"], "--fold", "any")])

  def edit_plan(change):
    def prepare(at):
      plan = json.loads((at("{of:plan}") / "plan.json").read_text())
      change(plan)
      at("{work}/edited").write_text(json.dumps(plan))
    return prepare
  edits = {"files": lambda p: p.update(files=7), "files as text": lambda p: p.update(files="1"), "files negative": lambda p: p.update(files=-1),
           "shard size": lambda p: p["fingerprint"]["recipe"].update(max_shard_size=4999999999), "format": lambda p: p.update(format=99),
           "fraction": lambda p: p["fingerprint"]["recipe"].update(max_shard_size=5000000000.5)}
  yield Group("plans", checkpoint(lambda: c.experts(plain, 80), moe), [
      convert("v7", ["v7"]), Case("plan", ["plan", "{src}", "{work}/x", "--to", "v7", "-o", "{out}/plan.json"], lambda at: at("{out}").mkdir()),
      *[Case(f"edited plan: {name}", ["convert", "--plan", "{work}/edited", "--task", "0/1"], edit_plan(change), ("plan",))
        for name, change in edits.items()],
      damaged_case("changed bytes run", ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"],
                   lambda d: d.put_bytes("w13_comp", 5, b"\x11")),
      damaged_case("changed bytes convert", ["convert", "{work}/art", "{out}", "--to", "nvfp4"],
                   lambda d: d.put_bytes("w13_comp", 5, b"\x11")),
      Case("man in a circle of links", ["man", "{work}/circle"], prepare=lambda at: pathlib.Path(at("{work}/circle")).symlink_to("circle")),
      Case("long argument", ["convert", "{src}", "{out}", "--to", "x" * 100000])])
  mixed_shape = lambda m, name, n, k: m.nvfp4(n, k, 0.25, (1,) if name == "down_proj" and m.random.random() < 0.5 else ())
  yield Group("shapes [] and [1]", checkpoint(lambda: c.experts(mixed_shape, 81), moe), [
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
    yield Group(f"settings: {name}", checkpoint(lambda: c.experts(plain, 82), config), [
        Case("lint", ["lint", "{src}"]), convert("v7", ["v7"]),
        Case("run router", ["run", "{of:v7}", "--layer", "0", "--input", "{work}/hidden.safetensors", "-o", "{out}"],
             lambda at, hidden=hidden: c.write_safetensors(at("{work}/hidden.safetensors"), hidden)),
        Case("run random", ["run", "{of:v7}", "--layer", "0", "--random", "2", "-o", "{out}"])])

  def unknown_layout(d):
    d.file_bytes("twofour.json", lambda b: b.replace(b'"v7"', b'"v9"'))
    d.file_bytes("config.json", lambda b: b.replace(b'"v7"', b'"v9"'))
  yield Group("unknown layout", checkpoint(lambda: c.experts(plain, 83), moe), [convert("v7", ["v7"])] + [
      damaged_case(n, args, unknown_layout) for n, args in {
          "run": ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"], "lint": ["lint", "{work}/art"],
          "inspect": ["inspect", "{work}/art"], "convert": ["convert", "{work}/art", "{out}", "--to", "nvfp4"]}.items()])
