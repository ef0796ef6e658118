"""Writes tests/golden/families: names, types and shapes of small models as transformers saves them.

    python tests/loaders/families_golden.py [FOLDER]

Runs in the environment `producers`. Tensors that differ in numbers alone are one line: the name with # for numbers, the
type, the shape, the layers, how many experts (0: it is one tensor). Towers are left out, and so are their configs.
"""

import importlib
import json
import re
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

GOLDEN = Path(__file__).parents[1] / "golden" / "families"

BASE = dict(vocab_size=97, hidden_size=48, num_hidden_layers=5, initializer_range=0.02, pad_token_id=0,
            bos_token_id=1, eos_token_id=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=10)
LATENT = dict(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=14, q_lora_rank=18, qk_rope_head_dim=6,
              qk_nope_head_dim=8, v_head_dim=12)
EXPERTS = dict(moe_intermediate_size=22, intermediate_size=26, num_experts_per_tok=2)
INDEX = dict(index_head_dim=16, index_n_heads=5, index_topk=16)
ONE_DENSE = dict(mlp_layer_types=["dense"] + ["sparse"] * 4)

#: of each family the settings of its language model
FAMILIES = {
    "glm5_next": dict(LATENT, **EXPERTS, **INDEX, n_routed_experts=3, n_shared_experts=1, linear_head_dim=20,
                      linear_num_heads=3, linear_conv_kernel_dim=4, hc_mult=2) | dict(qk_rope_head_dim=0),
    "hy_v3": dict(HEADS, **EXPERTS, num_experts=3, num_shared_experts=1),
    "hy_v4": dict(LATENT, **EXPERTS, n_routed_experts=3, n_shared_experts=1, index_head_dim=16, index_n_heads=5,
                  hc_mult=2),
    "inkling": dict(HEADS, **EXPERTS, **ONE_DENSE, n_routed_experts=3, n_shared_experts=2, d_rel=5, rel_extent=7,
                    swa_num_attention_heads=6, swa_num_key_value_heads=3, swa_head_dim=11,
                    layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid", "hybrid"]),
    "laguna": dict(HEADS, **EXPERTS, num_experts=3, shared_expert_intermediate_size=24,
                   num_attention_heads_per_layer=[4, 6, 4, 4, 4]),
    "minimax_m3_vl": dict(HEADS, **EXPERTS, **ONE_DENSE, num_local_experts=3, dense_intermediate_size=34,
                          shared_intermediate_size=30, rotary_dim=6, index_n_heads=5, index_head_dim=16,
                          layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention",
                                       "minimax_m3_sparse"]),
    "mimo_v2_flash": dict(HEADS, **EXPERTS, n_routed_experts=3, v_head_dim=12),
    "step3p7": dict(HEADS, **EXPERTS, **ONE_DENSE, n_routed_experts=3, share_expert_dim=24,
                    num_sliding_attention_heads=6, sliding_window=8,
                    layer_types=["full_attention", "sliding_attention"] * 2 + ["full_attention"]),
    "mistral4": dict(LATENT, **EXPERTS, n_routed_experts=3, n_shared_experts=1, first_k_dense_replace=1),
    "kimi_linear": dict(LATENT, **EXPERTS, num_local_experts=3, n_shared_experts=1, linear_head_dim=20,
                        linear_num_heads=3),
    "muse_glimmer": dict(HEADS, intermediate_size=26),
    "zaya": dict(HEADS, moe_intermediate_size=22, num_experts=3, num_experts_per_tok=1, router_hidden_size=24),
    "longcat_flash": dict(LATENT, num_hidden_layers=4, num_layers=2, ffn_hidden_size=26, expert_ffn_hidden_size=22,
                          n_routed_experts=3, zero_expert_num=2, moe_topk=2),
    "qwen4_exp": dict(HEADS, moe_intermediate_size=22, shared_expert_intermediate_size=24, num_experts=3,
                      num_experts_per_tok=2, linear_key_head_dim=6, linear_value_head_dim=8, linear_num_key_heads=2,
                      linear_num_value_heads=4, hc_count=2, hc_lowrank=7, ple_layer_ids=[2], ple_embed_dim=32,
                      heads_per_ngram=2, ngram_vocab_size_base=64, make_ngram_vocab_size_divisible_by=4,
                      split_ngram_parts=4, indexer_n_heads=3, indexer_kv_heads=1, indexer_head_dim=16,
                      indexer_budget=16, indexer_compress_ratio=4),
}
#: classes whose files are named as published ones are, where there is one of text alone too, with their towers' settings
WHOLE = {"minimax_m3_vl": dict(projector_hidden_size=28,
                               vision_config=dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                                  intermediate_size=40, patch_size=4))}
TOWERS = ("vision", "visual", "audio", "projector", "patch_merge")
#: transformers 5.17 saves dense layers as blocks of experts
DENSE = re.compile(r"block_sparse_moe\.(gate|up|down)_proj\.")
#: what conversion_mapping.py makes of published names, the other way: the class of text alone saves its own
INKLING = {"model.layers": "model.llm.layers", "model.embed_tokens": "model.llm.embed",
           "model.embed_norm": "model.llm.embed_norm", "model.norm": "model.llm.norm", "lm_head": "model.llm.unembed",
           "self_attn.q_proj": "attn.wq_du", "self_attn.k_proj": "attn.wk_dv", "self_attn.v_proj": "attn.wv_dv",
           "self_attn.r_proj": "attn.wr_du", "self_attn.o_proj": "attn.wo_ud", "sconv.conv1d": "sconv",
           "self_attn.": "attn.", "post_attention_layernorm": "mlp_norm", "input_layernorm": "attn_norm",
           "mlp.gate.e_score_correction_bias": "mlp.gate.bias", "mlp.experts.gate_up_proj": "mlp.experts.w13_weight",
           "mlp.experts.down_proj": "mlp.experts.w2_weight",
           "shared_experts.down_proj": "shared_experts.shared_w2_weight", "mlp.down_proj": "mlp.w2_md"}


def save(family, folder):
  """Saves a model with random weights."""
  import torch

  models = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
  configs = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
  named = next((n for n in configs.__all__ if n.endswith("TextConfig")), None)
  text = getattr(configs, named or next(n for n in configs.__all__ if n.endswith("Config")))
  config = text(**BASE | FAMILIES[family])
  causal = next((n for n in models.__all__ if n.endswith("ForCausalLM")), None)
  if causal is None or family in WHOLE:
    whole = getattr(configs, named.replace("TextConfig", "Config"))
    config = whole(text_config=config.to_dict(), **WHOLE.get(family, {}))
    causal = next(n for n in models.__all__ if n.endswith("ForConditionalGeneration"))
  getattr(models, causal)(config).to(torch.bfloat16).save_pretrained(folder)


def published(tensors):
  """Inkling's names: rows of gate and up are one matrix."""
  renamed = {}
  for name, (dtype, shape) in tensors.items():
    if name.endswith(("shared_experts.up_proj", "mlp.up_proj.weight")):
      continue
    if name.endswith("shared_experts.gate_proj"):
      name, shape = name.replace("gate_proj", "shared_w13_weight"), [shape[0], 2 * shape[1], shape[2]]
    elif name.endswith("mlp.gate_proj.weight"):
      name, shape = name.replace("mlp.gate_proj", "mlp.w13_dn"), [2 * shape[0], shape[1]]
    for own, other in INKLING.items():
      name = name.replace(own, other)
    renamed[name] = (dtype, shape)
  return renamed


def golden(family):
  """The text of a family's file."""
  tensors = {}
  with tempfile.TemporaryDirectory() as folder:
    save(family, folder)
    config = json.loads((Path(folder) / "config.json").read_text())
    for path in Path(folder).glob("*.safetensors"):
      with safe_open(path, "pt") as file:
        for name in file.keys():
          part = file.get_slice(name)
          tensors[name] = (part.get_dtype(), part.get_shape())
  if family == "inkling":
    tensors = published(tensors)
    config.pop("architectures")
    config = {"architectures": ["InklingForConditionalGeneration"], "model_type": "inkling_mm_model",
          "text_config": config}
  for tower in ("vision_config", "audio_config"):
    config.pop(tower, None)
  rows = {}
  for name, (dtype, shape) in tensors.items():
    if any(tower in name for tower in TOWERS):
      continue
    parts = DENSE.sub(r"mlp.\1_proj.", name).split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    folded = ".".join("#" if part.isdigit() else part for part in parts)
    layers, experts = rows.setdefault((folded, tuple(shape), dtype), (set(), set()))
    layers.update(numbers[:1])
    # LongCat's experts that pass their input on have no weights in published files.
    experts.update(number for number in numbers[1:2] if number < 3)
  lines = [json.dumps([name, dtype, list(shape), sorted(layers), len(experts)])
       for (name, shape, dtype), (layers, experts) in sorted(rows.items())]
  head = json.dumps(config, sort_keys=True)
  return f'{{"config": {head},\n "tensors": [\n  ' + ",\n  ".join(lines) + "]}\n"


if __name__ == "__main__":
  folder = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
  folder.mkdir(parents=True, exist_ok=True)
  for family in FAMILIES:
    (folder / f"{family}.json").write_text(golden(family))
