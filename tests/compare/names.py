"""Names of modules as families have them, and others: which are experts, routers, heads, drafts, and what takes them."""
import json

import checkpoints as c
from cases import Case, Group, checkpoint

#: Known types of models, and one that is not.
MODEL_TYPES = (
    "gpt_oss", "openai_privacy_filter", "llama4", "llama4_text", "gemma4", "gemma4_text", "granitemoe", "granitemoeshared", "granitemoehybrid",
    "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_omni_moe", "qwen3_5_moe", "qwen3_5_moe_text", "mixtral",
    "minimax", "minimax_m2", "olmoe", "flex_olmo", "phimoe", "lfm2_moe", "jamba", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "deepseek_v4", "kimi_k2", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "hunyuan_v1_moe",
    "nemotron_h", "llama", "mistral", "qwen2", "qwen3", "bert", "unheard_of")
QUICK = ("qwen3_moe", "deepseek_v3", "mixtral", "unheard_of")
ROLES = ("experts", "shared-experts", "router", "attention", "linear-attention", "mlp", "mtp", "head", "embeddings")

#: Blocks of experts with their projections, a layer each, and what lies beside them.
BLOCKS = {
    "mlp": ("gate_proj", "up_proj", "down_proj"), "block_sparse_moe": ("w1", "w3", "w2"), "feed_forward": ("gate_proj", "up_proj", "down_proj"),
    "mixer": ("up_proj", "down_proj"), "ffn": ("w1", "w3", "w2"), "": ("gate_proj", "up_proj", "down_proj")}
BESIDE = {
    "mlp": ("mlp.gate", "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert_gate",
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.qkv_proj"),
    "block_sparse_moe": ("block_sparse_moe.gate", "mlp.gate.wg", "block_sparse_moe.router.layer", "self_attn.q_a_proj", "self_attn.q_b_proj",
                         "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.indexer.wq_b", "self_attn.indexer.weights_proj"),
    "feed_forward": ("feed_forward.router", "feed_forward.gate", "feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj",
                     "feed_forward.shared_expert.down_proj", "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_ba",
                     "linear_attn.out_proj"),
    "mixer": ("mixer.gate", "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj", "mixer.in_proj", "mixer.out_proj", "mixer.conv1d",
              "mamba.in_proj", "mamba.x_proj", "mamba.dt_proj", "mamba.out_proj"),
    "ffn": ("ffn.gate", "ffn.shared_experts.w1", "ffn.shared_experts.w3", "ffn.shared_experts.w2", "attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a",
            "attn.wo_b"),
    "": ("router.proj", "router", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate_up_proj", "mlp.fc1", "mlp.fc2", "attention.query",
         "feed_forward.w1", "feed_forward.w2", "feed_forward.w3")}
AROUND = ("model.embed_tokens", "lm_head", "output", "score", "transformer.wte", "model.mtp.layers.0.eh_proj", "mtp.layers.0.mlp.experts.0.up_proj",
          "mtp.layers.0.self_attn.q_proj", "mtp.fc", "model.layers.6.eh_proj", "model.layers.6.shared_head.head", "model.layers.6.mlp.experts.0.down_proj",
          "model.layers.6.mlp.up_proj", "visual.blocks.0.attn.qkv", "vision_tower.encoder.layers.0.mlp.fc1", "model.vision_tower.layers.0.self_attn.q_proj",
          "multi_modal_projector.linear_1", "audio_tower.layers.0.fc1", "model.language_model.layers.0.mlp.up_proj", "thinker.model.layers.0.mlp.up_proj",
          "model.per_layer_model_projection", "model.ngram_embeddings.0", "lora_A")
#: Fused linears, and the parts of them that no source has beside them.
FUSED = {"model.layers.0.self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "model.layers.5.mlp.gate_up_proj": ("gate_proj", "up_proj")}
VECTORS = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm", "model.layers.6.enorm", "model.layers.6.hnorm")


def tensors(fused=False):
  m, t = c.Maker(120), {}
  add = lambda name, shape=(32, 32): t.update({f"{name}.weight": m.floats("BF16", *shape)})
  for name in AROUND:
    add(name)
  for name in VECTORS:
    add(name, (32,))
  for layer, (block, leaves) in enumerate(BLOCKS.items()):
    place = f"model.layers.{layer}."
    for name in BESIDE[block]:
      add(place + name)
    for e in range(2):
      for leaf in leaves:
        add(f"{place}{block}.experts.{e}.{leaf}" if block else f"{place}experts.{e}.{leaf}")
  for whole, parts in FUSED.items():
    above = whole.rpartition(".")[0]
    for name in [f"{above}.{part}" for part in parts] if fused else [whole]:
      del t[f"{name}.weight"]
  t["model.layers.0.mlp.gate.e_score_correction_bias"] = m.floats("F32", 2)
  t["model.layers.4.ffn.gate.bias"] = m.floats("F32", 2)
  return t


def cases(roles):
  out = ["{src}", "{out}"]
  found = [Case("inspect", ["inspect", "{src}"]), Case("lint", ["lint", "{src}"]), Case("quantize", ["quantize", *out, "--dry-run"]),
           Case("quantize all", ["quantize", *out, "--also", "*", "--dry-run"]),
           *[Case(to, ["convert", *out, "--to", to, "--dry-run"]) for to in ("v7", "nvfp4", "fp8", "bf16", "mxfp8")]]
  for role in roles:
    def prepare(at, role=role):
      at("{work}/rules.json").write_text(json.dumps({"format": 1, "rules": [{"match": role, "to": "fp8", "odd_blocks": "write"}]}))
    found += [Case(f"role {role}", ["convert", *out, "--recipe", "{work}/rules.json", "--dry-run"], prepare),
              Case(f"drop {role}", ["drop", *out, "--modules", role, "--dry-run"])]
  for pattern in ("*gate*", "*router*", "*.mlp.*", "re:.*experts\\.0\\..*", "*layers.6*"):
    found.append(Case(f"include {pattern}", ["quantize", *out, "--include", pattern, "--dry-run"]))
  return found


def all_groups():
  for kind in MODEL_TYPES:
    config = c.model_config(kind, 32, 32, layers=6, experts=2, num_nextn_predict_layers=1)
    yield Group(f"names {kind}", checkpoint(tensors, config), cases(ROLES), thorough=kind not in QUICK)
    yield Group(f"names {kind}, fused", checkpoint(lambda: tensors(fused=True), config), cases(("attention", "mlp")), thorough=kind not in QUICK)
  for name, more in {"tied": {"tie_word_embeddings": True}, "no type": {"model_type": None}, "drafts mtp_num_hidden_layers": {"mtp_num_hidden_layers": 1},
                     "no drafts": {"num_nextn_predict_layers": 0}, "nested": {"text_config": {"model_type": "qwen3_moe", "num_hidden_layers": 6}}}.items():
    config = {**c.model_config("qwen3_moe", 32, 32, layers=6, experts=2, num_nextn_predict_layers=1), **more}
    yield Group(f"names, {name}", checkpoint(tensors, {k: v for k, v in config.items() if v is not None}), cases(("mtp", "head", "router")))
