"""One rank of vLLM's classes on an artifact, on the CPU: vllm_rank.py ARTIFACT RANK WORLD SYNC OUT [--expert-parallel]

Writes a torch file: what load_weights loaded and left, the parameters of twofour's methods with their shapes and bytes,
what these methods give on fixed tokens, and what vLLM's own feed-forward blocks with their routers and reductions give.
vLLM's attention needs kernels that the wheel has for GPUs alone, so whole models are not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # before vllm is imported

import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()


import support  # noqa: F401  (the module's path)
from safetensors import safe_open
from vllm.config import DeviceConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.model_loader.utils import initialize_model

import twofour.integrations.vllm as plugin


def weights(artifact: Path):
    for file in sorted(artifact.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name)


def outputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Each of twofour's methods on the same tokens; of linears columns of this rank."""
    found = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not type(method).__name__.startswith("Twofour"):
            continue
        method.process_weights_after_loading(module)
        torch.manual_seed(2)
        if isinstance(method, plugin.TwofourMoEMethod):
            x = torch.randn(6, 128)
            ids = torch.tensor([[i % 4, (i + 1) % 4] for i in range(6)], dtype=torch.int32)
            found[name] = method.apply(module, x, torch.rand(6, 2), ids)
        else:
            x = torch.randn(6, module.input_size)
            mine = module.twofour_linear.shape.k
            begin = module.tp_rank * mine if mine < module.input_size else 0
            found[name] = method.apply(module, x[:, begin : begin + mine])
    return found


def forward_blocks(model: torch.nn.Module, config: VllmConfig) -> dict[str, torch.Tensor]:
    """vLLM's MLPs and MoE blocks on the same tokens, by the name of their layer."""
    for module in model.modules():
        if isinstance(module, LinearBase):  # whose products are done by an extension that is missing here
            object.__setattr__(module, "cpu_linear", torch.nn.functional.linear)
    torch.manual_seed(5)
    x = torch.randn(6, 128, dtype=torch.bfloat16)
    found = {}
    with set_forward_context(None, config, num_tokens=6), torch.no_grad():
        for name, module in model.named_modules():
            layer, _, last = name.rpartition(".")
            if last in ("mlp", "block_sparse_moe"):
                found[layer] = module(x)
    return found


def main() -> None:
    artifact, rank, world, sync, out = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    plugin.register()
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(artifact), tokenizer=str(artifact), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=64,
            enforce_eager=True,
        ),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(
            tensor_parallel_size=world, enable_expert_parallel="--expert-parallel" in sys.argv,
            distributed_executor_backend="external_launcher" if world > 1 else None,
        ),
    )  # fmt: skip
    assert isinstance(config.quant_config, plugin.TwofourVllmConfig), config.quant_config
    with set_current_vllm_config(config):
        init_distributed_environment(world, rank, f"file://{sync}", rank, "gloo")
        initialize_model_parallel(world)
        torch.set_default_dtype(torch.bfloat16)
        model = initialize_model(vllm_config=config)
        torch.set_default_dtype(torch.float32)
        loaded = set(model.load_weights(weights(artifact)))
        names = {name for name, _ in model.named_parameters()}
        ours = {
            name: (tuple(p.shape), p.view(torch.uint8).clone())
            for name, p in model.named_parameters()
            if ".w13_" in name or ".w2_" in name
        }
        torch.save(
            {"left": names - loaded, "unknown": loaded - names, "ours": ours, "outputs": outputs(model),
             "blocks": forward_blocks(model, config),
             "layouts": config.quant_config.layouts, "base": type(config.quant_config.base).__name__},
            out,
        )  # fmt: skip


if __name__ == "__main__":
    main()
