"""Checkpoints in every format that twofour reads, of made-up weights, and what is done with each."""
import checkpoints as c
from cases import Group, checkpoint, float_cases, nvfp4_cases


def uneven(m, name, n, k):
  """Gate and up with other global scales, ratios that round."""
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
      **c.model_config("qwen3_moe", 512, 384, experts=2), **q}, shards=2), nvfp4_cases("*o_proj"), thorough=True)
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


def all_groups():
  yield from nvfp4_groups()
  yield from float_groups()
