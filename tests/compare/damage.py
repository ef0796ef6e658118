"""Damaged checkpoints and artifacts, and outputs that something is in the way of."""
import shutil

import checkpoints as c
from cases import Case, Group, checkpoint, convert, damaged_case, tasks
from sources import float_linear_of, uneven, with_inputs

INDEX = "model.safetensors.index.json"


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
        Case("prune", ["prune", "{src}", "{out}"]), Case("quantize", ["quantize", "{src}", "{out}"])])
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
        Case("quantize", ["quantize", "{src}", "{out}"]), Case("quantize mse", ["quantize", "{src}", "{out}", "--block-scale", "mse"]),
        convert("bf16", ["bf16"]), convert("fp8", ["fp8"])])


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
                       "diff": ["diff", "{src}", "{work}/art"], "card": ["card", "{work}/art"],
                       "run": ["run", "{work}/art", "--layer", "0", "--random", "2", "-o", "{out}"],
                       "run check": ["run", "{work}/art", "--layer", "0", "--random", "2", "--check", "-o", "{out}"],
                       "nvfp4": ["convert", "{work}/art", "{out}", "--to", "nvfp4"],
                       "nvfp4 check": ["convert", "{work}/art", "{out}", "--to", "nvfp4", "--check"]}.items():
      cases.append(damaged_case(f"{name} {what}", args, damage))
  in_the_way = {
      "empty directory": lambda d: d.mkdir(), "a file": lambda d: d.write_text("x"),
      "other files": lambda d: (d.mkdir(), (d / "mine.txt").write_text("x"))}
  for name, put in in_the_way.items():
    for option in ("", "--force", "--resume"):
      cases.append(Case(f"onto {name} {option}".strip(), ["convert", "{src}", "{out}", "--to", "v7", *([option] if option else [])],
                        lambda at, put=put: put(at("{out}"))))
  onto = lambda at: shutil.copytree(at("{of:v7}"), at("{out}"))
  for option in ("--force", "--resume", ""):
    for to in ("v7", "g8"):
      cases.append(Case(f"onto an artifact {to} {option}".strip(),
                        ["convert", "{src}", "{out}", "--to", to, *([option] if option else [])], onto, ("v7",)))
  cases += [
      Case("resume onto a damaged one", ["convert", "{src}", "{out}", "--to", "v7", "--resume"],
           lambda at: c.Copy(at("{of:v7}"), at("{out}")).file_bytes("model-00001-of-00001.safetensors", flip(-2)), ("v7",)),
      Case("plan", ["plan", "{src}", "{out}/planned", "--to", "v7", "-o", "{work}/plan.json", "--max-shard-size", "20kB"]),
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


def all_groups():
  yield from damaged_groups()
  yield artifact_group()
