"""Artifacts in transformers 5: after `import twofour.integrations.transformers`, from_pretrained loads them.

    import twofour.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained("artifact", device_map="cuda")

MLPs and experts of v7, v7-packed and g8 artifacts keep the tensors that are stored and run through libtwofour, on CUDA
or (slowly) on the CPU; all else is transformers' own. No weight is decoded for good.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._library import Error
from .stored_block import StoredBlock, layer_shape

#: Types that tensors outside of layouts may have: transformers multiplies by no others.
_FLOATS = {"F64", "F32", "BF16", "F16"}
_INTEGERS = {"I64", "I32", "BOOL"}


@register_quantization_config("twofour")
class TwofourConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """quantization_config of an artifact, kept as its config.json has it."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)
        self.quant_method = "twofour"


def read_blocks(files: list[str]) -> tuple[dict[str, dict[str, tuple[int, ...]]], list[str]]:
    """Tensors of blocks in a layout by prefix and name, and other tensors that transformers cannot use, in words."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                piece = opened.get_slice(name)
                tensors[name] = (piece.get_dtype(), tuple(piece.get_shape()))
    prefixes = {n.removesuffix(".w13_global_scale") for n in tensors if n.endswith(".w13_global_scale")}
    blocks: dict[str, dict[str, tuple[int, ...]]] = {prefix: {} for prefix in prefixes}
    odd = []
    for name, (dtype, shape) in tensors.items():
        prefix, _, leaf = name.rpartition(".")
        if prefix in blocks and leaf.startswith(("w13_", "w2_")):
            blocks[prefix][leaf] = shape
        elif dtype not in _FLOATS | _INTEGERS:
            odd.append(f"{name} ({dtype})")
    return blocks, odd


def _place_of(model: Any, prefix: str, renamings: list[WeightRenaming]) -> Optional[str]:
    """The path of a block's module in the model, which may name it otherwise than the files do."""
    path = prefix + ".weight"
    for renaming in renamings:
        path = renaming.rename_source_key(path)[0]
    path = path.removesuffix(".weight")
    base = model.base_model_prefix
    for candidate in (path, prefix, path.removeprefix(f"{base}."), f"{base}.{path}"):
        try:
            model.get_submodule(candidate)
            return str(candidate)
        except AttributeError:
            continue
    return None


def _check(name: str, module: torch.nn.Module, experts: bool, gated: bool, config: Any) -> None:
    """Refuses what a module computes beyond its weights."""
    if biases := [n for n, _ in module.named_parameters() if "bias" in n]:
        raise Error(f"{name}: expected weights alone, found {biases[0]}, which libtwofour does not add")
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None) or "silu"
    known = ("silu", "swish") if gated else ("relu2",)
    if activation not in known:
        raise Error(f"{name}: expected the activation {known[0]}, found {activation}")
    count = len(inspect.signature(module.forward).parameters)
    if count != (3 if experts else 1):
        raise Error(
            f"{name}: expected a module that takes {'hidden, ids and weights' if experts else 'hidden'}, "
            f"found {type(module).__name__}, which takes {count} arguments"
        )


@register_quantizer("twofour")
class TwofourQuantizer(HfQuantizer):  # type: ignore[misc]
    """Puts StoredBlocks in the place of MLPs and experts before weights are loaded."""

    requires_calibration = True

    def update_dtype(self, dtype: Optional[torch.dtype]) -> Optional[torch.dtype]:
        """What libtwofour takes as hidden: float32, bfloat16 or float16."""
        if dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
            raise Error(f"dtype: expected float32, bfloat16 or float16, found {dtype}")
        self.dtype = dtype
        return dtype

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Optional[list[str]] = None, **_: Any
    ) -> None:
        files = list(checkpoint_files or ())
        if not files or not all(file.endswith(".safetensors") for file in files):
            raise Error(f"{model.config.name_or_path}: expected safetensors files, found {files[:1] or 'none'}")
        where = Path(files[0]).parent
        blocks, odd = read_blocks(files)
        if not blocks:
            raise Error(f"{where}: expected blocks in v7, v7-packed or g8, found none")
        if odd:
            raise Error(
                f"{where}: expected floats outside of layouts, found {odd[0]}"
                + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
                + "; convert the linears that it belongs to to BF16 first"
            )
        renamings = [t for t in get_model_conversion_mapping(model) if isinstance(t, WeightRenaming)]
        config = model.config.get_text_config()
        limit = float(getattr(config, "swiglu_limit", None) or 0.0)
        for prefix, found in sorted(blocks.items()):
            path = _place_of(model, prefix, renamings)
            if path is None:
                continue  # layers that the model does not have, as for predicting further tokens
            shape = layer_shape(prefix, found)
            _check(prefix, model.get_submodule(path), path.endswith("experts"), shape.gated, config)
            block = StoredBlock(shape, limit=limit, device="meta")
            for parameter in block.parameters():
                parameter._is_hf_initialized = True
            model.set_submodule(path, block)
        if not any(isinstance(module, StoredBlock) for module in model.modules()):
            raise Error(f"{where}: expected blocks of {type(model).__name__}, found {sorted(blocks)[0]}")
        # Input scales of the source, which weights of FP4 with activations of 16 bits have no use for
        ignored = set(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
        model._keys_to_ignore_on_load_unexpected = ignored | {r"\.input_scale$"}

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        stored = {id(p) for m in model.modules() if isinstance(m, StoredBlock) for p in m.parameters()}
        dtype = self.dtype or model.dtype
        kept = model._get_dtype_plan(dtype)
        for name, parameter in model.named_parameters():
            # transformers leaves renamed tensors of quantized checkpoints in their own type
            if id(parameter) not in stored and parameter.is_floating_point() and not kept:
                parameter.data = parameter.data.to(dtype)
        for module in model.modules():
            if isinstance(module, StoredBlock):
                module.layer()

    def is_serializable(self) -> bool:
        """False: an artifact is written by `twofour convert`."""
        return False

    @property
    def is_trainable(self) -> bool:
        """False: weights are codes."""
        return False

    @property
    def is_compileable(self) -> bool:
        """True: blocks are one operator."""
        return True
