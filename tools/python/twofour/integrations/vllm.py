"""Artifacts in vLLM: the plugin `twofour` registers this configuration, which `quant_method: twofour` asks for.

Experts and MLPs of v7, v7-packed and g8 artifacts run through libtwofour (stored_block.py, stored_linear.py, which
import no vLLM). Linears outside of layouts are vLLM's own, by the quantization that the artifact's source had.
README.md beside this file says what was run.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Iterable, Optional

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    get_quantization_config,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.models.utils import WeightsMapper

from .._layer import LayerShape
from .._errors import Error
from .._linear import LinearShape
from .slices import rank_slice
from .stored_block import StoredBlock
from .stored_linear import StoredLinear

#: Fused linears of vLLM, by the matrix of a dense block that they hold.
_LINEARS = {"gate_up_proj": "w13", "down_proj": "w2"}


def _join(pieces: Any, axis: int) -> torch.Tensor:
    if pieces[0].dtype == torch.float8_e4m3fn:
        return torch.cat([p.view(torch.uint8) for p in pieces], axis).view(torch.float8_e4m3fn)
    return torch.cat(list(pieces), axis)


def _pattern(name: str) -> str:
    """A name or glob as a regular expression."""
    return re.escape(name).replace(r"\*", ".*")


def _base_config(base: Optional[dict[str, Any]]) -> Optional[QuantizationConfig]:
    """vLLM's configuration of what the artifact's source says of itself; None where that is not quantized."""
    if not base:
        return None
    for method in QUANTIZATION_METHODS:
        if str(method).startswith(("modelopt", "mxfp8")):
            chosen = get_quantization_config(method).override_quantization_method(base, None)
            if chosen is not None:
                return get_quantization_config(chosen).from_config(base)
    return get_quantization_config(base["quant_method"]).from_config(base)


class TwofourVllmConfig(QuantizationConfig):  # type: ignore[misc]
    """quantization_config of an artifact: which modules are in which layout, and what the rest is."""

    def __init__(self, layouts: dict[str, str], base: Optional[dict[str, Any]] = None) -> None:
        super().__init__()
        self.layouts = layouts  #: by names or globs of blocks: {"model.layers.*.mlp.experts": "v7"}
        self.base = _base_config(base)

    def get_name(self) -> str:
        """The method's name."""
        return "twofour"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Types of hidden that libtwofour takes."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Of the GPU: the kernels are compiled for sm_90 and later."""
        return 90

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: config.json has all of it."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TwofourVllmConfig:
        """From quantization_config of config.json, of one layout or of groups of several."""
        groups = config.get("groups") or [config]
        layouts = {name: group["layout"] for group in groups for name in group["modules"]}
        if not layouts:
            raise ValueError("quantization_config: expected modules in a layout, found none")
        return cls(layouts, config.get("base"))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """What runs a layer; None where vLLM's default does."""
        if isinstance(layer, RoutedExperts) and (layout := self.layout_of(prefix)):
            return TwofourMoEMethod(layer.moe_config, prefix, layout)
        block, _, last = prefix.rpartition(".")
        if isinstance(layer, LinearBase) and last in _LINEARS and (layout := self.layout_of(block)):
            return TwofourLinearMethod(f"{block}.{_LINEARS[last]}", layout)
        if self.base is not None:
            self.base.packed_modules_mapping = self.packed_modules_mapping
            return self.base.get_quant_method(layer, prefix)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def layout_of(self, block: str) -> Optional[str]:
        """The layout of a block by its prefix; None where it is in none."""
        return next((layout for name, layout in self.layouts.items() if re.fullmatch(_pattern(name), block)), None)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Names of modules as vLLM has them."""
        self.layouts = {hf_to_vllm_mapper.map_name(n) or n: layout for n, layout in self.layouts.items()}
        if self.base is not None:
            self.base.apply_vllm_mapper(hf_to_vllm_mapper)

    def get_checkpoint_weight_mapper(self) -> WeightsMapper:
        """Tensors of dense blocks to the linears that hold them; input scales of blocks, which W4A16 has no use for,
        to none."""
        renamed: dict[re.Pattern[str], Optional[str]] = {}
        for name in self.layouts:
            at = _pattern(name)
            renamed[re.compile(rf"^{at}\.(\d+\.)?\w+\.input_scale$")] = None
            if not name.endswith("experts"):
                renamed[re.compile(rf"^({at})\.w13_")] = r"\1.gate_up_proj.w13_"
                renamed[re.compile(rf"^({at})\.w2_")] = r"\1.down_proj.w2_"
        return WeightsMapper(orig_to_new_regex=renamed)


def _register(layer: torch.nn.Module, name: str, parameter: torch.nn.Parameter, loader: Callable[..., None]) -> None:
    layer.register_parameter(name, parameter)
    parameter.weight_loader = loader


def _fill(name: str, parameter: torch.nn.Parameter, piece: torch.Tensor) -> None:
    if parameter.shape != piece.shape or parameter.dtype != piece.dtype:
        raise Error(
            f"{name}: expected {parameter.dtype} {list(parameter.shape)} for this rank, "
            f"found {piece.dtype} {list(piece.shape)}"
        )
    parameter.data.copy_(piece)


class TwofourMoEMethod(FusedMoEMethodBase):  # type: ignore[misc]
    """Routed experts through libtwofour, in slices of I (tensor parallel) or some of the experts (expert parallel)."""

    def __init__(self, moe: Any, name: str, layout: str) -> None:
        super().__init__(moe)
        self.name, self.layout = name, layout

    def maybe_roundup_sizes(self, hidden_size: int, intermediate_size_per_partition: int, *_: Any) -> tuple[int, int]:
        """As they are: stored tensors are not padded."""
        return hidden_size, intermediate_size_per_partition

    def create_weights(
        self, layer: Any, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
        params_dtype: torch.dtype, **_: Any,
    ) -> None:  # fmt: skip
        """The tensors of the layout for this rank's experts and columns, under the names that files have."""
        gated = bool(self.moe.is_act_and_mul)
        if gated and layer.activation != MoEActivation.SILU:
            raise Error(f"{self.name}: expected silu, found {layer.activation}")
        if layer.swiglu_alpha is not None or layer.swiglu_beta is not None or self.moe.has_bias:
            raise Error(f"{self.name}: expected experts without biases, alpha and beta, found some")
        shape = LayerShape(self.name, self.layout, num_experts, hidden_size, intermediate_size_per_partition, gated)
        block = StoredBlock(shape, weight_on_input=layer.apply_router_weight_on_input, limit=layer.swiglu_limit or 0.0)
        object.__setattr__(layer, "twofour_block", block)  # its parameters are the layer's own
        for name, parameter in block.named_parameters():
            _register(layer, name, parameter, functools.partial(self.load, layer, name))
        layer.load_weights = functools.partial(self.load_weights, layer)

    def load_weights(self, layer: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
        """Takes this rank's part of every stored tensor; gives the names that it loaded."""
        for name, tensor in weights:
            parameter = getattr(layer, name, None)
            if not isinstance(parameter, torch.nn.Parameter):
                raise Error(f"{self.name}.{name}: expected a tensor of {self.layout}, found another name")
            self.load(layer, name, parameter, tensor)
            yield name

    def load(self, layer: Any, name: str, parameter: torch.nn.Parameter, tensor: torch.Tensor, *_: Any) -> None:
        """Copies this rank's part of a stored tensor."""
        shape = layer.twofour_block.shape
        parallel = self.moe.moe_parallel_config
        begin = parallel.tp_rank * shape.intermediate
        piece = rank_slice(
            shape.layout, name, tensor, shape.hidden, parallel.tp_size * shape.intermediate, shape.gated, begin,
            begin + shape.intermediate, _join,
        )  # fmt: skip
        if layer._expert_map is not None:
            local = layer._expert_map.tolist()
            mine = sorted((at, e) for e, at in enumerate(local) if at >= 0)
            data = piece.view(torch.uint8) if piece.dtype == torch.float8_e4m3fn else piece
            piece = data[[e for _, e in mine]].view(piece.dtype)
        _fill(f"{self.name}.{name}", parameter, piece)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Looks at every byte, once, and puts the layer over the tensors."""
        expert_map = None if layer._expert_map is None else layer._expert_map.tolist()
        layer.twofour_block.options["expert_map"] = expert_map
        layer.twofour_block.layer()

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig:
        """Nothing: vLLM's own kernels are not used."""
        return FusedMoEQuantConfig.make()

    def apply(
        self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
        shared_experts: Any = None, shared_experts_input: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """x [M, H] at ids and weights [M, top_k] to [M, H]: this rank's share."""
        return layer.twofour_block(x, topk_ids, topk_weights)


class TwofourLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """gate_up_proj or down_proj of a dense block through libtwofour, in slices along N or K."""

    def __init__(self, name: str, layout: str) -> None:
        self.name, self.layout = name, layout
        self.matrix = name.rpartition(".")[2]

    def create_weights(
        self, layer: Any, input_size_per_partition: int, output_partition_sizes: list[int], input_size: int,
        output_size: int, params_dtype: torch.dtype, **_: Any,
    ) -> None:  # fmt: skip
        """The tensors of the layout for this rank, under the names that files have."""
        gated = self.matrix == "w13" and len(output_partition_sizes) == 2
        shape = LinearShape(self.name, self.layout, 1, sum(output_partition_sizes), input_size_per_partition, gated)
        linear = StoredLinear(shape)
        object.__setattr__(layer, "twofour_linear", linear)
        hidden, intermediate = (input_size, output_size) if self.matrix == "w13" else (output_size, input_size)
        sizes = (hidden, intermediate // 2 if gated else intermediate)
        for name, parameter in linear.named_parameters():
            loader = functools.partial(self.load, layer, f"{self.matrix}_{name}", sizes)
            _register(layer, f"{self.matrix}_{name}", parameter, loader)

    def load(
        self,
        layer: Any,
        name: str,
        sizes: tuple[int, int],
        parameter: torch.nn.Parameter,
        tensor: torch.Tensor,
        *_: Any,
    ) -> None:
        """Copies this rank's part of a stored tensor."""
        shape = layer.twofour_linear.shape
        hidden, intermediate = sizes
        mine = intermediate // layer.tp_size
        begin = layer.tp_rank * mine
        piece = rank_slice(shape.layout, name, tensor, hidden, intermediate, shape.gated, begin, begin + mine, _join)
        _fill(f"{self.name.rpartition('.')[0]}.{name}", parameter, piece)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Looks at every byte, once."""
        layer.twofour_linear.linear()

    def apply(self, layer: Any, x: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x [..., K] to [..., N] of this rank."""
        out = layer.twofour_linear(x)
        return out if bias is None else out + bias


def register() -> None:
    """What the entry point `vllm.general_plugins` calls in every process of vLLM."""
    register_quantization_config("twofour")(TwofourVllmConfig)
