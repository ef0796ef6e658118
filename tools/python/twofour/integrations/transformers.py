"""Artifacts in transformers 5: after `import twofour.integrations.transformers`, from_pretrained loads them.

    import twofour.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained("artifact", device_map="cuda")

MLPs and experts of v7, v7-packed and g8 artifacts keep the tensors that are stored and run through libtwofour, on CUDA
or (slowly) on the CPU, and so do linears that stayed in NVFP4; those in FP8 are decoded some rows at a time. Weights
alone are quantized, not activations. All else is transformers' own. No weight is decoded for good.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._errors import Error
from .fp8_linear import Fp8Linear
from .stored_block import StoredBlock, layer_shape
from .stored_linear import CheckpointLinear

#: Types that tensors outside of layouts may have: transformers multiplies by no others.
_FLOATS = {"F64", "F32", "BF16", "F16"}
_INTEGERS = {"I64", "I32", "BOOL"}
#: Types of scales of FP8.
_SCALES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@register_quantization_config("twofour")
class TwofourConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """quantization_config of an artifact, kept as its config.json has it."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)
        self.quant_method = "twofour"


@dataclass
class Stored:
    """What files hold."""

    blocks: dict[str, dict[str, tuple[int, ...]]]  #: shapes by prefix of a block in a layout, and tensor
    linears: dict[str, tuple[int, int, bool]]  #: in NVFP4: N, K and whether the names are those of compressed-tensors
    fp8: dict[
        str, tuple[tuple[int, ...], str, str, tuple[int, ...]]
    ]  #: in FP8: [N, K], and name, type and shape of scales
    odd: list[str]  #: tensors that nothing here multiplies, in words


def read_stored(files: list[str]) -> Stored:
    """Reads headers alone."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                piece = opened.get_slice(name)
                tensors[name] = (piece.get_dtype(), tuple(piece.get_shape()))
    prefixes = {n.removesuffix(".w13_global_scale") for n in tensors if n.endswith(".w13_global_scale")}
    stored = Stored({prefix: {} for prefix in prefixes}, {}, {}, [])
    for suffix, codes in ((".weight_scale_2", "weight"), (".weight_global_scale", "weight_packed")):
        for name in [n.removesuffix(suffix) for n in tensors if n.endswith(suffix)]:
            dtype, shape = tensors.get(f"{name}.{codes}", ("", ()))
            scale = tensors.get(f"{name}.weight_scale", ("", ()))
            if dtype == "U8" and len(shape) == 2 and scale == ("F8_E4M3", (shape[0], shape[1] // 8)):
                stored.linears[name] = (shape[0], 2 * shape[1], codes == "weight_packed")
    for suffix in ("weight_scale", "weight_scale_inv"):
        for name in [n.removesuffix(f".{suffix}") for n in tensors if n.endswith(f".{suffix}")]:
            dtype, shape = tensors.get(f"{name}.weight", ("", ()))
            scale_dtype, scale_shape = tensors[f"{name}.{suffix}"]
            if dtype == "F8_E4M3" and len(shape) == 2 and scale_dtype in _SCALES:
                stored.fp8[name] = (shape, suffix, scale_dtype, scale_shape)
    for name, (dtype, shape) in tensors.items():
        prefix, _, leaf = name.rpartition(".")
        if prefix in prefixes and leaf.startswith(("w13_", "w2_")):
            stored.blocks[prefix][leaf] = shape
        elif dtype not in _FLOATS | _INTEGERS and prefix not in stored.linears and prefix not in stored.fp8:
            stored.odd.append(f"{name} ({dtype})")
    return stored


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


def _linear_of(
    model: Any, name: str, dims: tuple[int, ...], renamings: list[WeightRenaming]
) -> Optional[tuple[str, bool]]:
    """The path of a linear and whether it has a bias; None where the model does not have it."""
    path = _place_of(model, name, renamings)
    if path is None:
        return None
    linear = model.get_submodule(path)
    if type(linear) is not torch.nn.Linear or tuple(linear.weight.shape) != dims:
        raise Error(f"{name}: expected a linear {list(dims)}, found {linear}")
    return path, linear.bias is not None


def _replace(model: Any, path: str, module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter._is_hf_initialized = True
    model.set_submodule(path, module)


def _check(name: str, module: torch.nn.Module, experts: bool, gated: bool, config: Any) -> None:
    """Refuses what a module computes beyond its weights."""
    if biases := [n for n, _ in module.named_parameters() if "bias" in n]:
        raise Error(f"{name}: expected weights alone, found {biases[0]}, which libtwofour does not add")
    names = ("mlp_hidden_act", "hidden_act", "hidden_activation")
    activation = next((value for name in names if (value := getattr(config, name, None))), "silu")
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
        stored = read_stored(files)
        if not stored.blocks:
            raise Error(f"{where}: expected blocks in v7, v7-packed or g8, found none")
        if stored.odd:
            raise Error(
                f"{where}: expected floats, NVFP4 or FP8 outside of layouts, found {stored.odd[0]}"
                + (f" and {len(stored.odd) - 1} more" if len(stored.odd) > 1 else "")
                + "; convert the linears that it belongs to to BF16 first"
            )
        renamings = [t for t in get_model_conversion_mapping(model) if isinstance(t, WeightRenaming)]
        config = model.config.get_text_config()
        limit = float(getattr(config, "swiglu_limit", None) or 0.0)
        for prefix, found in sorted(stored.blocks.items()):
            path = _place_of(model, prefix, renamings)
            if path is None:
                continue  # layers that the model does not have, as for predicting further tokens
            shape = layer_shape(prefix, found)
            _check(prefix, model.get_submodule(path), path.endswith("experts"), shape.gated, config)
            _replace(model, path, StoredBlock(shape, limit=limit, device="meta"))
        for name, (n, k, compressed) in sorted(stored.linears.items()):
            if (at := _linear_of(model, name, (n, k), renamings)) is not None:
                _replace(model, at[0], CheckpointLinear(name, n, k, compressed, at[1], device="meta"))
        for name, (dims, scale, dtype, scale_shape) in sorted(stored.fp8.items()):
            if (at := _linear_of(model, name, dims, renamings)) is not None:
                n, k = dims
                _replace(model, at[0], Fp8Linear(name, n, k, scale, scale_shape, _SCALES[dtype], at[1], device="meta"))
        if not any(isinstance(module, StoredBlock) for module in model.modules()):
            raise Error(f"{where}: expected blocks of {type(model).__name__}, found {sorted(stored.blocks)[0]}")
        # Input scales of the source, which weights of FP4 with activations of 16 bits have no use for
        ignored = set(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
        model._keys_to_ignore_on_load_unexpected = ignored | {r"\.input_scale$"}

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        ours = [m for m in model.modules() if isinstance(m, (StoredBlock, CheckpointLinear, Fp8Linear))]
        stored = {id(p) for m in ours for name, p in m.named_parameters() if name != "bias"}
        dtype = self.dtype or model.dtype
        keeps_float32 = bool(model._get_dtype_plan(dtype))
        for parameter in model.parameters():
            # transformers leaves renamed tensors of quantized checkpoints in their own type
            kept = keeps_float32 and parameter.dtype == torch.float32
            if id(parameter) not in stored and parameter.is_floating_point() and not kept:
                parameter.data = parameter.data.to(dtype)
        for module in ours:
            if isinstance(module, StoredBlock):
                module.layer()
            elif isinstance(module, CheckpointLinear):
                module.linear()

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
