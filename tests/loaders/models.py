"""Small random models of every family, written as transformers' save_pretrained writes them.

Two layers, BF16, fixed seed. TINY/<model_type>: hidden size 128, 4 experts. BIG/llama and BIG/qwen3_moe: every
dimension of a linear is a multiple of 128, as FP8 blocks want it.
"""
import pathlib

import torch
import transformers

LAYERS, HIDDEN, EXPERTS = 2, 128, 4
COMMON = dict(
    vocab_size=256, hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.1, tie_word_embeddings=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=2)
MOE = dict(moe_intermediate_size=64, num_experts_per_tok=2)
MLA = dict(kv_lora_rank=64, q_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32,
           num_key_value_heads=4)
DEEPSEEK = MOE | MLA | dict(n_routed_experts=EXPERTS, n_shared_experts=1, n_group=1, topk_group=1)
LINEAR_ATTENTION = dict(
    head_dim=32, linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
    layer_types=["linear_attention", "full_attention"])

FAMILIES = {
    "llama": {},
    "qwen2_moe": MOE | dict(num_experts=EXPERTS, shared_expert_intermediate_size=128),
    "qwen3_moe": MOE | dict(num_local_experts=EXPERTS, head_dim=32),
    "qwen3_next": MOE | LINEAR_ATTENTION | dict(num_experts=EXPERTS, shared_expert_intermediate_size=128),
    "qwen3_5_moe_text": MOE | LINEAR_ATTENTION | dict(num_experts=EXPERTS, shared_expert_intermediate_size=128),
    "mixtral": dict(num_local_experts=EXPERTS, num_experts_per_tok=2),
    "olmoe": dict(num_experts=EXPERTS, num_experts_per_tok=2),
    "flex_olmo": dict(num_experts=EXPERTS, num_experts_per_tok=2),
    "phimoe": dict(num_local_experts=EXPERTS, num_experts_per_tok=2),
    "deepseek_v2": DEEPSEEK | dict(first_k_dense_replace=1),
    "deepseek_v3": DEEPSEEK | dict(first_k_dense_replace=1, num_nextn_predict_layers=0),
    "deepseek_v4": DEEPSEEK | dict(head_dim=64, qk_rope_head_dim=16, index_head_dim=32, index_n_heads=4, o_groups=2,
                                   o_lora_rank=64, num_nextn_predict_layers=0, num_hash_layers=1, index_topk=16,
                                   num_key_value_heads=1),
    "glm4_moe": MOE | dict(n_routed_experts=EXPERTS, n_shared_experts=1, first_k_dense_replace=1, head_dim=32,
                           num_nextn_predict_layers=0, n_group=1, topk_group=1),
    "glm4_moe_lite": DEEPSEEK | dict(mlp_layer_types=["dense", "sparse"], num_nextn_predict_layers=0),
    "dots1": MOE | dict(n_routed_experts=EXPERTS, n_shared_experts=1, first_k_dense_replace=1, head_dim=32,
                        n_group=1, topk_group=1, layer_types=["full_attention"] * LAYERS),
    "ernie4_5_moe": dict(moe_intermediate_size=64, moe_k=2, moe_num_experts=EXPERTS, moe_num_shared_experts=1,
                         moe_layer_start_index=1, moe_layer_end_index=1),
    "exaone_moe": MOE | dict(num_experts=EXPERTS, num_shared_experts=1, head_dim=32, n_group=1, topk_group=1,
                             layer_types=["sliding_attention", "full_attention"], sliding_window=64,
                             mlp_layer_types=["dense", "sparse"]),
    "hunyuan_v1_moe": dict(num_experts=EXPERTS, moe_topk=2, head_dim=32),
    "jamba": dict(num_experts=EXPERTS, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1,
                  expert_layer_period=2, expert_layer_offset=1, mamba_d_state=16, mamba_dt_rank=16,
                  use_mamba_kernels=False),
    "lfm2_moe": MOE | dict(num_experts=EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention"]),
    "minimax_m2": dict(num_local_experts=EXPERTS, num_experts_per_tok=2, head_dim=32),
    "gpt_oss": dict(num_local_experts=EXPERTS, num_experts_per_tok=2, head_dim=32, sliding_window=64,
                    layer_types=["sliding_attention", "full_attention"]),
    "llama4_text": dict(num_local_experts=EXPERTS, num_experts_per_tok=1, head_dim=32, intermediate_size_mlp=128,
                        interleave_moe_layer_step=1, layer_types=["chunked_attention", "full_attention"]),
    "gemma4_text": dict(enable_moe_block=True, num_experts=EXPERTS, top_k_experts=2, moe_intermediate_size=64,
                        head_dim=32, global_head_dim=32, hidden_size_per_layer_input=0, sliding_window=64,
                        layer_types=["sliding_attention", "full_attention"]),
    "granitemoe": dict(num_local_experts=EXPERTS, num_experts_per_tok=2),
    "nemotron_h": MOE | dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
                             head_dim=32, ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=32, n_groups=2,
                             n_routed_experts=EXPERTS, moe_shared_expert_intermediate_size=128, chunk_size=16,
                             n_group=1, topk_group=1),
}
BIG = {
    "llama": dict(hidden_size=256, intermediate_size=256, head_dim=64),
    "qwen3_moe": dict(hidden_size=256, intermediate_size=256, head_dim=64, moe_intermediate_size=128,
                      num_experts_per_tok=2, num_local_experts=EXPERTS),
}
MODELS = {f"TINY/{name}": (name, options) for name, options in FAMILIES.items()} | {
    f"BIG/{name}": (name, options) for name, options in BIG.items()}
BIG_NAMES = [f"BIG/{name}" for name in BIG]


def config_of(name):
  """Configuration of the model with this name in MODELS."""
  family, options = MODELS[name]
  return transformers.CONFIG_MAPPING[family](**(COMMON | options))


def fill_constant(model):
  """Makes parameters random that their initialization leaves constant: biases, norms. nemotron_h's output projections
  are uniform, with half of all blocks at the largest scale, which lint rightly doubts; they become normal."""
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
        parameter.add_(0.05 * torch.randn_like(parameter))
      elif model.config.model_type == "nemotron_h" and name.endswith("out_proj.weight"):
        parameter.normal_(0, 0.1)


def make(name, folder):
  """Writes the model into folder, as one safetensors file in BF16."""
  folder = pathlib.Path(folder)
  torch.manual_seed(1)
  model = transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
  fill_constant(model)
  model.eval().save_pretrained(folder)
  return model


def tokens():
  """Token numbers that every comparison of logits uses, I64 [2, 12]."""
  return torch.randint(3, COMMON["vocab_size"], (2, 12), generator=torch.Generator().manual_seed(2))
