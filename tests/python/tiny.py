"""Small random models as save_pretrained writes them, and artifacts of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import twofour

_ALL: dict[str, Any] = dict(
    vocab_size=128, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    max_position_embeddings=128,
)  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "llama": dict(intermediate_size=256),
    "mixtral": dict(intermediate_size=256, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(
        intermediate_size=256, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2,
        mlp_only_layers=[1], norm_topk_prob=True,
    ),
}  # fmt: skip
#: What of a model becomes NVFP4.
_INCLUDE = {"mixtral": "*.experts.*"}


def make_model(family: str, folder: Path) -> Path:
    """A checkpoint in NVFP4 but for attention, embedding and head."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **_ALL, **_OWN[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "bf16")
    twofour.quantize(folder / "bf16", folder / "nvfp4", include=_INCLUDE.get(family, "*.mlp.*_proj"))
    return folder / "nvfp4"


def make_artifact(source: Path, artifact: Path, layout: str) -> None:
    """All feed-forward blocks in a layout: convert by itself takes experts alone where there are some."""
    dense = json.loads((source / "config.json").read_text()).get("mlp_only_layers")
    twofour.convert(source, artifact, to=layout, also=[f"model.layers.{i}.mlp" for i in dense or ()])
