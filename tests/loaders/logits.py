#!/usr/bin/env python3
"""What transformers computes of small models of every family that the decoder runs.

  logits.py OUT          the cases of tests/golden/decoder, small enough to be kept
  logits.py OUT --large  the same families, wider and longer

Each case becomes OUT/CASE.json (config, names and shapes of tensors) and OUT/CASE.safetensors (`tokens` I32 [T], `logits`
F32 [T, vocabulary]: of a prefill and of tokens decoded one by one, 32 or 48). Weights follow a formula of their names, which
tests/lib/run/decoder/logits_test.cpp has, too, so that they need not be kept.
"""
import argparse
import json
import math
import pathlib
import tempfile

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import transformers

STEPS = 32
# Of models with linear attention: more than a chunk of 64 tokens, and single tokens behind them.
HYBRID_PREFILL, HYBRID_STEPS = 70, 48
# Of models with entries of 128 tokens: the first of them is complete in the prefill.
COMPRESSED_PREFILL = 150


def values(name, shape, adds_one=False):
  """The weights of a tensor, all of them numbers that BF16 has. Norms may multiply by 1 + w."""
  seed = 0xCBF29CE484222325
  for byte in name.encode():
    seed = (seed ^ byte) * 0x100000001B3 % 2**64
  count = math.prod(shape)
  x = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
  for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
    x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
  unit = ((x >> np.uint64(57)).astype(np.float32) - 64) / 64  # -1 to 1 in steps of 1/64
  if name.endswith("norm.weight"):
    unit = (0 if adds_one and "linear_attn" not in name else 1) + unit / 2
  elif len(shape) < 2 or name.endswith("_bias"):
    unit = unit / (4 if "correction" in name or name.endswith("gate.bias") else 1)
  elif "embed" not in name:
    fan = shape[1] if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj") else shape[-1]
    unit = unit * np.float32(2.0 ** (1 - math.ceil(math.log2(fan) / 2)))
  return torch.from_numpy(unit.reshape(shape)).to(torch.bfloat16)


def table(shape, experts):
  """The experts of each token, all of them different for as many as a token has."""
  token, place = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None]
  return (5 * token + 3 * place) % experts


def cases(large):
  """Name to model_type and config."""
  wide = dict(hidden_size=96, intermediate_size=160, vocab_size=256) if large else dict(
      hidden_size=32, intermediate_size=48, vocab_size=48)
  heads = dict(num_attention_heads=4, num_key_value_heads=2)
  common = wide | heads | dict(num_hidden_layers=3, max_position_embeddings=512, tie_word_embeddings=False,
                               pad_token_id=0, bos_token_id=1, eos_token_id=2)
  size = dict(head_dim=16)
  moe = dict(moe_intermediate_size=32 if large else 16, num_experts_per_tok=2)
  eight = dict(num_local_experts=8)
  mla = dict(kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, num_key_value_heads=4)
  deepseek = moe | mla | dict(n_routed_experts=8, n_shared_experts=2, first_k_dense_replace=1)
  grouped = dict(n_group=4, topk_group=2, num_experts_per_tok=3)
  yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
  llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)
  sliding = ["sliding_attention", "full_attention", "sliding_attention"]
  return {name: (family, common | options) for name, (family, options) in {
      "llama": ("llama", dict(attention_bias=True, mlp_bias=True)),
      "llama-tied-linear": ("llama", size | dict(tie_word_embeddings=True, rope_parameters=dict(
          rope_type="linear", rope_theta=10000.0, factor=4.0))),
      "llama-llama3": ("llama", dict(rope_parameters=llama3, num_key_value_heads=1)),
      "mistral-window": ("mistral", size | dict(sliding_window=9)),
      "qwen2": ("qwen2", dict(rope_parameters=yarn)),
      "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)),
      "qwen3": ("qwen3", size | dict(attention_bias=True)),
      "qwen2_moe": ("qwen2_moe", moe | dict(num_experts=8, shared_expert_intermediate_size=24, mlp_only_layers=[1],
                                            use_sliding_window=True, sliding_window=9, max_window_layers=2)),
      "qwen3_moe": ("qwen3_moe", moe | size | dict(num_experts=8, norm_topk_prob=True, decoder_sparse_step=2)),
      "qwen3_moe-window": ("qwen3_moe", moe | size | dict(num_experts=8, use_sliding_window=True, sliding_window=9)),
      "mixtral": ("mixtral", eight | dict(num_experts_per_tok=2, sliding_window=None)),
      "minimax_m2": ("minimax_m2", eight | size | dict(
          num_experts_per_tok=3, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
      "olmoe": ("olmoe", dict(num_experts=8, num_experts_per_tok=3, clip_qkv=1.5, norm_topk_prob=True)),
      "deepseek_v2": ("deepseek_v2", deepseek | dict(q_lora_rank=None, n_group=None, topk_group=None,
                                                     routed_scaling_factor=1.5)),
      "deepseek_v2-groups": ("deepseek_v2", deepseek | grouped | dict(
          q_lora_rank=24, topk_method="group_limited_greedy",
          rope_parameters=yarn | dict(mscale=0.7, mscale_all_dim=0.9, beta_fast=16.0, beta_slow=2.0))),
      "deepseek_v3": ("deepseek_v3", deepseek | grouped | dict(
          q_lora_rank=24, num_nextn_predict_layers=0, rope_parameters=yarn | dict(mscale=1.0, mscale_all_dim=1.0))),
      "deepseek_v3-halves": ("deepseek_v3", deepseek | dict(
          q_lora_rank=None, num_nextn_predict_layers=0, n_group=1, topk_group=1, rope_interleave=False,
          norm_topk_prob=False, attention_bias=True)),
      "glm4_moe": ("glm4_moe", moe | size | grouped | dict(
          n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, num_nextn_predict_layers=0,
          use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5)),
      "glm4_moe-plain": ("glm4_moe", moe | size | dict(
          n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=0, num_nextn_predict_layers=0,
          n_group=1, topk_group=1)),
      "gpt_oss": ("gpt_oss", eight | size | dict(num_experts_per_tok=2, sliding_window=9, layer_types=sliding)),
  }.items()} | hybrid_cases(common, moe) | compressed_cases(common, moe, yarn) | gemma_cases(common) | nemotron_cases(common, moe)


def hybrid_cases(common, moe):
  """Models with layers of linear attention between layers of full attention."""
  # What a head reads from a small state is nearly 0, and a norm with a small epsilon magnifies rounding in it.
  linear = dict(num_hidden_layers=4, rms_norm_eps=1e-2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                linear_key_head_dim=8, linear_value_head_dim=12)
  wide = linear | dict(linear_num_key_heads=3, linear_num_value_heads=3, linear_value_head_dim=16,
                       linear_conv_kernel_dim=2)
  experts = moe | dict(num_experts=8, shared_expert_intermediate_size=24)
  mixed = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
  sections = dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
                  mrope_interleaved=True)
  yarn = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32,
              partial_rotary_factor=0.5)
  tower = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2, spatial_merge_size=2,
               out_hidden_size=common["hidden_size"], num_position_embeddings=16)

  def seen(text):
    return dict(text_config=common | text, vision_config=tower, image_token_id=3, video_token_id=4,
                vision_start_token_id=5, vision_end_token_id=6, tie_word_embeddings=False)

  return {
      "qwen3_next": ("qwen3_next", common | experts | linear | dict(layer_types=mixed, mlp_only_layers=[2])),
      "qwen3_next-yarn": ("qwen3_next", common | experts | wide | dict(
          rms_norm_eps=1e-6, attention_bias=True, norm_topk_prob=False, decoder_sparse_step=2, tie_word_embeddings=True,
          rope_parameters=yarn)),
      "qwen3_5": ("qwen3_5_text", common | linear | dict(rope_parameters=sections)),
      "qwen3_5-vision": ("qwen3_5", seen(wide | dict(rope_parameters=sections, layer_types=mixed))),
      "qwen3_5_moe": ("qwen3_5_moe_text", common | experts | wide | dict(rope_parameters=sections, layer_types=mixed)),
      "qwen3_5_moe-vision": ("qwen3_5_moe", seen(experts | linear | dict(rope_parameters=sections))),
  }


def compressed_cases(common, moe, yarn):
  """DeepSeek-V4: layers with a window alone, with overlapping entries and an index, and with entries of 128 tokens."""
  common = {key: value for key, value in common.items() if key not in ("intermediate_size", "num_key_value_heads")}
  # So many heads of the index that no scores are 0 at once, which would be equal.
  index = dict(index_n_heads=16, index_head_dim=16, index_topk=2)
  sizes = dict(num_hidden_layers=4, head_dim=16, qk_rope_head_dim=8, q_lora_rank=32, o_groups=2, o_lora_rank=16,
               n_routed_experts=8, n_shared_experts=1, num_nextn_predict_layers=1, sliding_window=9)
  v4 = common | moe | index | sizes
  scaled = {key: value for key, value in yarn.items() if key != "rope_theta"}
  return {
      "deepseek_v4": ("deepseek_v4", v4 | dict(
          compress_ratios=[0, 4, 128, 4, 0], num_hash_layers=1, rope_parameters=scaled, swiglu_limit=0.75)),
      "deepseek_v4-tied": ("deepseek_v4", v4 | dict(
          compress_ratios=[128, 4, 4, 0], num_hash_layers=0, index_topk=5, sliding_window=24, hc_mult=3,
          hc_sinkhorn_iters=2, hc_eps=1e-3, routed_scaling_factor=2.5, tie_word_embeddings=True, o_groups=1,
          rms_norm_eps=1e-5, compress_rope_theta=4e4)),
  }


def gemma_cases(common):
  """Gemma-3: norms behind, gelu, a rope of its own where attention has a window."""
  gemma = {key: value for key, value in common.items() if key != "tie_word_embeddings"} | dict(
      head_dim=16, query_pre_attn_scalar=12, sliding_window=9, sliding_window_pattern=2)
  linear = dict(full_attention=dict(rope_type="linear", rope_theta=5e4, factor=4.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0))
  return {
      "gemma3": ("gemma3_text", gemma),
      "gemma3-linear": ("gemma3_text", gemma | dict(tie_word_embeddings=False, rope_parameters=linear,
                                                    num_key_value_heads=1, sliding_window_pattern=3)),
  }


def nemotron_cases(common, moe):
  """Nemotron-H: layers of one block, which is Mamba-2, attention without rope, an MLP or experts without gates."""
  common = {key: value for key, value in common.items() if key != "num_hidden_layers"}
  mamba = dict(head_dim=16, mamba_num_heads=8, mamba_head_dim=12, n_groups=2, ssm_state_size=8, chunk_size=16)
  experts = moe | dict(n_routed_experts=8, moe_shared_expert_intermediate_size=24, num_nextn_predict_layers=0)
  return {
      "nemotron_h": ("nemotron_h", common | mamba | experts | dict(
          layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"], moe_latent_size=16,
          use_bias=True, mlp_bias=True, n_group=4, topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5)),
      # transformers clamps time steps in prompts, but not those of single tokens: see whole_prompt().
      "nemotron_h-steps": ("nemotron_h", common | mamba | experts | dict(
          layers_block_type=["mlp", "linear_attention", "linear_attention", "moe", "full_attention"], time_step_min=0.75,
          use_conv_bias=False, conv_kernel=2, n_groups=4, mamba_num_heads=4, ssm_state_size=20, norm_topk_prob=False,
          layer_norm_epsilon=1e-2, num_key_value_heads=1)),
  }


def whole_prompt(options):
  """True if logits are those of one prefill, because transformers treats single tokens differently."""
  return "time_step_min" in options


def is_hybrid(options):
  return "linear_num_key_heads" in options.get("text_config", options)


def make_model(family, options, folder):
  """A model with the weights of the formula, in float32, and names and shapes of its files' tensors."""
  config = transformers.AutoConfig.for_model(family, **options)
  config.architectures = None
  torch.manual_seed(0)
  auto = transformers.AutoModelForImageTextToText if "vision_config" in options else transformers.AutoModelForCausalLM
  auto.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
  file = folder / "model.safetensors"
  adds_one = is_hybrid(options) or family == "gemma3_text"
  tensors = {name: table(tensor.shape, options["n_routed_experts"]) if name.endswith("tid2eid") else
             values(name, tensor.shape, adds_one) for name, tensor in safetensors.torch.load_file(file).items()}
  safetensors.torch.save_file(tensors, file, {"format": "pt"})
  model, info = auto.from_pretrained(
      folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
  assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
  return model.eval(), {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}


@torch.no_grad()
def run(model, tokens, prefill):
  """Logits of a prefill, and of what follows it token by token."""
  out = model(tokens[None, :prefill], use_cache=True)
  logits = [out.logits[0]]
  for i in range(prefill, len(tokens)):
    out = model(tokens[None, i:i + 1], past_key_values=out.past_key_values, use_cache=True)
    logits.append(out.logits[0])
  return torch.cat(logits).to(torch.float32)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("out", type=pathlib.Path)
  parser.add_argument("--large", action="store_true")
  parser.add_argument("--only")
  o = parser.parse_args()
  o.out.mkdir(parents=True, exist_ok=True)
  torch.set_num_threads(2)
  for name, (family, options) in cases(o.large).items():
    if o.only not in (None, name):
      continue
    is_long = is_hybrid(options) or family in ("gemma3_text", "nemotron_h")
    prefill, steps = (HYBRID_PREFILL, HYBRID_STEPS) if is_long else (16, STEPS)
    if "compress_ratios" in options:
      prefill, steps = COMPRESSED_PREFILL, HYBRID_STEPS
    prefill = 300 if o.large else prefill
    with tempfile.TemporaryDirectory() as folder:
      model, shapes = make_model(family, options, pathlib.Path(folder))
      config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    for of in (config, config.get("text_config", {}), config.get("vision_config", {})):
      for key in ("transformers_version", "architectures", "dtype", "use_cache"):
        of.pop(key, None)
    tokens = torch.arange(prefill + steps) ** 2 * 7 % 31 + torch.arange(prefill + steps) % 13 + 3
    logits = run(model, tokens, len(tokens) if whole_prompt(options) else prefill)
    (o.out / f"{name}.json").write_text(json.dumps({"config": config, "prefill": prefill, "tensors": shapes}) + "\n")
    kept = logits if not o.large else logits[prefill - 64:]
    safetensors.numpy.save_file({"tokens": tokens.to(torch.int32).numpy(), "logits": kept.numpy()},
                                o.out / f"{name}.safetensors")
    print(name, list(logits.shape), f"largest {logits.abs().max():.3g}")


if __name__ == "__main__":
  main()
