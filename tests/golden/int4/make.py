"""Makes the golden data of tests/lib/checkpoint/int4_golden_test.cpp by running the producers' own code on CPU tensors.

    python -m venv venv && venv/bin/pip install compressed-tensors==0.20.0 torch==2.14.0 transformers==5.17.0 \
        safetensors==0.8.0 numpy
    pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1      # unpacked, for two of their files each
    venv/bin/python tests/golden/int4/make.py autoawq-0.2.9 auto_gptq tests/golden/int4

A file for each producer. In it, for each case, the tensors of a module CASE as the producer stores them and
    CASE.expected [n, k]  F32, the weights as the producer dequantizes them
"""

import importlib.util
import sys
import types
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file


def load(path, name, **stubs):
    """One source file of a package, without the package's own imports."""
    for stub, content in stubs.items():
        module = types.ModuleType(stub.replace("__", "."))
        module.__dict__.update(content)
        sys.modules[module.__name__] = module
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def group_scales(n, groups, dtype):
    """Any numbers of that type."""
    return (torch.rand(n, groups) * 0.05 + 0.001).to(dtype)


def compressed_tensors(to):
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    tensors = {}
    for name, n, k, group, symmetric, dtype in [
        ("symmetric", 12, 96, 32, True, torch.bfloat16),
        ("asymmetric", 11, 64, 16, False, torch.float16),
        ("channel", 5, 37, None, True, torch.float32),
        ("channel_asymmetric", 18, 20, None, False, torch.bfloat16),
    ]:
        groups = k // group if group else 1
        strategy = "group" if group else "channel"
        args = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        state = {"weight": torch.randn(n, k) * 0.1, "weight_scale": group_scales(n, groups, dtype).float()}
        if not symmetric:
            state["weight_zero_point"] = torch.randint(-8, 8, (n, groups), dtype=torch.int8)
        state = PackedQuantizationCompressor.compress(state, scheme)
        # Scales of 16 bits in float32, so that no product is rounded to 16.
        expected = PackedQuantizationCompressor.decompress(dict(state), scheme)["weight"]
        state["weight_scale"] = state["weight_scale"].to(dtype)
        tensors |= {f"{name}.{key}": value for key, value in state.items()}
        tensors[f"{name}.expected"] = expected.float()
    save(to, "compressed_tensors", tensors, "compressed-tensors " + version("compressed-tensors"))


def awq(source, to):
    packing = load(source / "awq/utils/packing_utils.py", "awq.utils.packing_utils")
    gemm = load(
        source / "awq/modules/linear/gemm.py",
        "gemm",
        awq={},
        awq__utils={},
        awq__utils__module={"try_import": lambda name: (None, "")},
        awq__utils__utils={"get_best_device": lambda: "cpu"},
    )
    tensors = {}
    for name, n, k, group in [("groups", 32, 96, 32), ("one_group", 64, 40, 40)]:
        scales, zeros = group_scales(n, k // group, torch.float16).t(), torch.randint(0, 16, (k // group, n))
        linear = torch.nn.Linear(k, n, bias=False).half()
        codes = torch.randint(0, 16, (k, n))
        rows = torch.arange(k) // group
        linear.weight.data = ((codes - zeros[rows]) * scales[rows]).t().half().contiguous()
        made = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scales, zeros=zeros)
        tensors |= {f"{name}.{key}": getattr(made, key).contiguous() for key in ("qweight", "qzeros", "scales")}
        expected = packing.dequantize_gemm(made.qweight, made.qzeros, made.scales.float(), 4, group)
        tensors[f"{name}.expected"] = expected.t().contiguous()
    save(to, "awq", tensors, "autoawq 0.2.9")


def gptq(source, to):
    linears = load(source / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", "qlinear_cuda")
    tensors = {}
    for name, n, k, group, shuffled in [("in_order", 32, 64, 32, False), ("shuffled", 64, 96, 16, True)]:
        made = linears.QuantLinear(4, group, k, n, bias=False)
        groups = torch.arange(k, dtype=torch.int32) // group
        if shuffled:
            groups = groups[torch.randperm(k)]
        scales = group_scales(n, k // group, torch.float16)
        zeros = torch.randint(1, 17, (n, k // group)).float()  # all that a nibble can store less 1
        linear = torch.nn.Linear(k, n, bias=False).half()
        codes = torch.randint(0, 16, (n, k))
        linear.weight.data = (codes - zeros[:, groups]).half() * scales[:, groups]
        made.pack(linear, scales, zeros.clone(), groups)
        tensors |= {f"{name}.{key}": getattr(made, key).contiguous() for key in ("qweight", "qzeros", "scales", "g_idx")}
        made.scales = made.scales.float()
        made.autogptq_cuda_available = False
        tensors[f"{name}.expected"] = made(torch.eye(k)).t().contiguous().float()
    save(to, "gptq", tensors, "auto-gptq 0.7.1")


def save(to, name, tensors, producer):
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    save_file(tensors, to / f"{name}.safetensors", {"format": "pt", "producer": producer, "torch": torch.__version__})


if __name__ == "__main__":
    torch.manual_seed(1)
    to = Path(sys.argv[3])
    compressed_tensors(to)
    awq(Path(sys.argv[1]), to)
    gptq(Path(sys.argv[2]), to)
