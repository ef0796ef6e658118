"""The checkpoints and files that the artifacts are made of; random bits with fixed seeds, standard library only."""
import shutil
import struct

import checkpoints as c

HIDDEN, INTERMEDIATE, EXPERTS, VOCAB = 32, 16, 2, 16


# --- Of 0.1.0 -----------------------------------------------------------------------------------------------
def experts_alone(linear):
  """An MoE layer of two experts; linear(maker, name, n, k) gives the tensors of a linear by suffix."""
  m = c.Maker(568)
  layer = "model.layers.0."
  t = {"model.embed_tokens.weight": m.floats("BF16", 8, HIDDEN), layer + "mlp.gate.weight": m.floats("BF16", EXPERTS, HIDDEN),
       "model.norm.weight": m.floats("BF16", HIDDEN)}
  for e in range(EXPERTS):
    for name, n, k in (("gate_proj", INTERMEDIATE, HIDDEN), ("up_proj", INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
      t.update(c.under(f"{layer}mlp.experts.{e}.{name}", linear(m, f"{e}.{name}", n, k)))
  t.update(c.under(layer + "self_attn.o_proj", linear(m, "o_proj", HIDDEN, HIDDEN)))
  return t


def modelopt(m, name, n, k):
  # Gate and up of expert 1 have other global scales, so that layouts fold.
  return {**m.nvfp4(n, k, 0.19 if name == "1.up_proj" else 0.25), ".input_scale": ("F32", (), c.f32(0.03))}


def bf16(m, name, n, k):
  return {".weight": m.floats("BF16", n, k)}


def first_sources():
  config = c.model_config("qwen3_moe", HIDDEN, INTERMEDIATE, experts=EXPERTS, tie_word_embeddings=True, vocab_size=8)
  for name, linear, entry in (("modelopt", modelopt, c.MODELOPT),
                              ("compressed-tensors", lambda m, name, n, k: m.compressed(n, k, 6.0), c.COMPRESSED),
                              ("bf16", bf16, None)):
    yield name, experts_alone(linear), {**config, **({"quantization_config": entry} if entry else {})}


# --- Of 0.2.0: whole models that the decoder runs, and sources in other formats ------------------------------
def qwen3(linear, seed, layers=1, experts=0, width=32):
  m = c.Maker(seed)
  t = {"model.embed_tokens.weight": m.floats("BF16", VOCAB, HIDDEN), "model.norm.weight": m.floats("BF16", HIDDEN)}
  for i in range(layers):
    layer = f"model.layers.{i}."
    for norm, n in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN), ("self_attn.q_norm", 16), ("self_attn.k_norm", 16)):
      t[f"{layer}{norm}.weight"] = m.floats("BF16", n)
    linears = {"self_attn.q_proj": (32, HIDDEN), "self_attn.k_proj": (16, HIDDEN), "self_attn.v_proj": (16, HIDDEN),
               "self_attn.o_proj": (HIDDEN, 32)}
    if experts:
      t[layer + "mlp.gate.weight"] = m.floats("BF16", experts, HIDDEN)
    for mlp in [f"mlp.experts.{e}." for e in range(experts)] or ["mlp."]:
      linears.update({mlp + "gate_proj": (width, HIDDEN), mlp + "up_proj": (width, HIDDEN), mlp + "down_proj": (HIDDEN, width)})
    for name, (n, k) in linears.items():
      t.update(c.under(layer + name, linear(m, name, n, k)))
  return t


def qwen3_config(layers=1, experts=0, width=32, **more):
  family = "qwen3_moe" if experts else "qwen3"
  config = c.model_config(family, HIDDEN, width, layers=layers, experts=experts, tie_word_embeddings=True, vocab_size=VOCAB,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, rope_theta=10000.0,
                          max_position_embeddings=64)
  return {**config, "num_experts_per_tok": 1, **more} if experts else {**config, **more}


def dense():
  return qwen3(bf16, 41, width=64)


def words(m, rows, cols):
  return "I32", (rows, cols), m.bytes(4 * rows * cols)


def halves(m, *shape):
  return m.floats("F16", *shape)


def gptq(m, name, n, k):
  return {".qweight": words(m, k // 8, n), ".qzeros": words(m, k // 32, n // 8), ".scales": halves(m, k // 32, n)}


def awq(m, name, n, k):
  return {".qweight": words(m, k, n // 8), ".qzeros": words(m, k // 32, n // 8), ".scales": halves(m, k // 32, n)}


def int4(m, name, n, k):
  return {".weight_packed": words(m, n, k // 8), ".weight_scale": m.floats("BF16", n, k // 32),
          ".weight_shape": ("I64", (2,), struct.pack("<2q", n, k))}


def fp8(m, name, n, k):
  return m.fp8(n, k, ".weight_scale_inv", "F32", "block")


def gpt_oss():
  m = c.Maker(120)
  t = {"model.embed_tokens.weight": m.floats("BF16", VOCAB, HIDDEN), "model.norm.weight": m.floats("BF16", HIDDEN),
       "model.layers.0.mlp.router.weight": m.floats("BF16", EXPERTS, HIDDEN)}
  for name, n, k in (("gate_up_proj", 64, HIDDEN), ("down_proj", HIDDEN, 32)):
    codes, scales = m.mxfp4((EXPERTS, n, k), "c", "s", ("U8", "U8")).values()
    place = "model.layers.0.mlp.experts." + name
    t[place + "_blocks"] = ("U8", (EXPERTS, n, k // 32, 16), codes[2])
    t[place + "_scales"] = scales
    t[place + "_bias"] = m.floats("BF16", EXPERTS, n)
  return t


def deepseek_v4():
  m = c.Maker(44)
  t = {"embed.weight": m.floats("BF16", VOCAB, HIDDEN), "head.weight": m.floats("BF16", VOCAB, HIDDEN), "norm.weight": m.floats("BF16", HIDDEN)}
  for layer in ("layers.0.", "mtp.0."):
    t[layer + "ffn.gate.weight"] = m.floats("BF16", EXPERTS, HIDDEN)
    for name in ("attn.wq_a", "attn.wkv"):
      t.update(c.under(layer + name, m.fp8(32, HIDDEN, ".scale", "F8_E8M0", "block")))
    for e in range(EXPERTS):
      for name in ("w1", "w2", "w3"):
        t.update(c.under(f"{layer}ffn.experts.{e}.{name}", m.mxfp4((32, HIDDEN), ".weight", ".scale", ("I8", "F8_E8M0"))))
  return t


def draft():
  m = c.Maker(97)
  t = {"mtp.fc.weight": m.floats("BF16", HIDDEN, 2 * HIDDEN), "mtp.norm.weight": m.floats("BF16", HIDDEN)}
  for name, n, k in (("gate_proj", 64, HIDDEN), ("up_proj", 64, HIDDEN), ("down_proj", HIDDEN, 64)):
    t[f"mtp.layers.0.mlp.{name}.weight"] = m.floats("BF16", n, k)
  return t


def second_sources():
  blocks = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
  int4_entry = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
      "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}}}
  four_bits = {"bits": 4, "group_size": 32}
  yield "dense", dense(), qwen3_config(width=64, mtp_num_hidden_layers=0)
  yield "moe", qwen3(bf16, 43, 2, EXPERTS), qwen3_config(2, EXPERTS)
  yield "fp8", qwen3(fp8, 47), qwen3_config(quantization_config=blocks)
  for name, linear, entry in (("gptq", gptq, {"quant_method": "gptq", "sym": False, "desc_act": False, **four_bits}),
                              ("awq", awq, {"quant_method": "awq", "version": "gemm", "zero_point": True, **four_bits}),
                              ("int4", int4, int4_entry)):
    yield name, qwen3(linear, 53), qwen3_config(quantization_config=entry)
  config = c.model_config("gpt_oss", HIDDEN, 32, experts=EXPERTS, vocab_size=VOCAB, tie_word_embeddings=True)
  yield "gpt-oss", gpt_oss(), {**config, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
  config = c.model_config("deepseek_v4", HIDDEN, 32, experts=EXPERTS, vocab_size=VOCAB, head_dim=32, q_lora_rank=32, num_nextn_predict_layers=1, expert_dtype="fp4")
  yield "deepseek-v4", deepseek_v4(), {**config, "quantization_config": {**blocks, "scale_fmt": "ue8m0"}}
  yield "mtp", draft(), qwen3_config(width=64, mtp_num_hidden_layers=1)


RECIPES = {
    "mixed.yaml": """format: 1
rules:
  - {match: "*.layers.1.mlp.*", to: keep}
  - {match: experts, to: nvfp4, block_scale: mse, input_scale: constant=0.25, one_input_scale_a_layer: true}
  - {match: attention, to: fp8, granularity: row}
""",
    "mixed-compressed-tensors.yaml": """format: 1
dialect: compressed-tensors
rules:
  - {match: attention, to: fp8, granularity: tensor}
  - {match: "*.experts.*", to: nvfp4, pattern: "2:4"}
max_shard_size: 20000
""",
    "layouts.yaml": """format: 1
rules:
  - {match: "re:.*\\\\.layers\\\\.0\\\\..*", to: v7, fold: strict}
  - {match: experts, to: g8, block_scale: four-over-six, zero_block: zero}
""",
    "solved.yaml": """format: 1
rules:
  - {match: [model.layers.0.self_attn.q_proj, model.layers.0.self_attn.k_proj, model.layers.0.self_attn.v_proj], to: nvfp4, method: rtn}
  - {match: mlp, to: nvfp4, pattern: "2:4", method: joint, sweeps: 3}
"""}


def write(directory, version, run):
  """Those of a version; run(*words) runs its program, in the folder above."""
  made = first_sources() if version == "0.1.0" else second_sources()
  for name, tensors, config in made:
    shutil.rmtree(directory / name, ignore_errors=True)
    c.write_checkpoint(directory / name, tensors, config, files={"generation_config.json": "{}"})
  if version == "0.1.0":
    return
  for name, text in RECIPES.items():
    (directory / name).write_text(text)
  m = c.Maker(16)
  ids = [byte % VOCAB for byte in m.bytes(512)]
  c.write_safetensors(directory / "tokens.safetensors", {"tokens": ("I32", (16, 32), struct.pack("<512i", *ids))})
  collect = ["--tokens", "source/tokens.safetensors", "--force", "-o"]
  run("stats", "collect", "source/dense", *collect, "source/dense-stats.safetensors", "--held-out", "2")
  run("stats", "collect", "source/moe", *collect, "source/moe-costs.safetensors")
  add_costs(directory / "moe-costs.safetensors")
  c.write_safetensors(directory / "dense-amax.safetensors", {
      name.removesuffix(".weight") + ".amax": ("F32", (), c.f32(1.0 + len(name) / 8))
      for name in dense() if name.endswith("_proj.weight")})
  c.write_safetensors(directory / "dense-mask.safetensors", {
      name.removesuffix(".weight") + ".mask": ("U8", shape, masks(m, shape)) for name, (_, shape, _) in dense().items()
      if name.endswith("_proj.weight")})
  c.write_safetensors(directory / "moe-saliency.safetensors", {
      f"model.layers.{i}.mlp.experts.saliency": ("F32", (EXPERTS,), c.f32(1.5 - i, 0.75)) for i in range(2)})


def masks(m, shape):
  """Two of each four, by chance."""
  quads = [q for q in range(16) if bin(q).count("1") == 2]
  return b"".join(bytes(q >> i & 1 for i in range(4)) for q in (quads[b % 6] for b in m.bytes(shape[0] * shape[1] // 4)))


def add_costs(file):
  """Adds Fisher Hessians to statistics: multiples of the others, each layer its own."""
  header, _ = c.read_header(file)
  tensors = c.read_safetensors(file)
  for name, (dtype, shape, content) in list(tensors.items()):
    if name.endswith(".hessian"):
      factor = 0.25 if ".layers.0." in name else 0.5
      values = struct.unpack(f"<{len(content) // 4}f", content)
      tensors[name.removesuffix("hessian") + "fisher_hessian"] = (dtype, shape, c.f32(*[factor * v for v in values]))
  c.write_safetensors(file, tensors, header["__metadata__"])
