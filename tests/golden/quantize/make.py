"""Makes the golden data of tests/kernels/quantize_golden_test.cpp by running the producers' own code on CPU tensors.

    python -m venv venv && venv/bin/pip install nvidia-modelopt==0.47.0 llmcompressor==0.14.0.1 \
        compressed-tensors==0.19.0 torch==2.14.0 transformers==5.17.0 triton==3.8.0 safetensors==0.8.0
    venv/bin/python tests/golden/quantize/make.py tests/golden/quantize

A file for each producer and way to choose block scales. In it, for each case and weight type:
    CASE.TYPE.weight        [n, k]     the input
    CASE.TYPE.codes         [n, k/2]   U8
    CASE.TYPE.block_scale   [n, k/16]  U8, the bytes of E4M3
    CASE.TYPE.global_scale  [1]        F32, as the producer stores it
    CASE.TYPE.global_amax   [1]        F32, from which it was made; absent where the case gives the global scale
"""

import os
import sys
from contextlib import nullcontext
from importlib.metadata import version

os.environ["TRITON_INTERPRET"] = "1"  # ModelOpt's Triton kernels run on the CPU, in Triton's interpreter
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"  # the order of torch's sums depends on the vector width

import torch
from safetensors.torch import save_file

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


# --- Inputs -------------------------------------------------------------------------------------------


def e4m3(byte):
    return torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).float().item()


def ulps(x, count):
    """The float32 that is `count` places further from zero."""
    return (x.float().view(torch.int32) + count).view(torch.float32)


def inputs():
    """name -> float32 weights; each type rounds them as it does."""
    random = torch.Generator().manual_seed(24)
    normal = lambda *shape: torch.randn(*shape, generator=random)
    cases = {"normal": 0.02 * normal(32, 256), "small": 0.02 * normal(16, 64)}
    cases["heavy_tailed"] = 0.01 * normal(16, 64) * torch.exp(1.5 * normal(16, 64))

    zero_blocks = 0.05 * normal(7, 48)
    zero_blocks[0] = 0
    zero_blocks[3, 16:32] = 0
    zero_blocks[5, :16] = -0.0
    cases["zero_blocks"] = zero_blocks
    cases["zero_matrix"] = torch.zeros(3, 16)

    # Blocks from far below the smallest scale to the largest one, around a weight of 1.
    tiny = normal(7, 48).clamp(-1, 1)
    tiny[6, 47] = 1
    for block in range(20):
        row, k = block // 3, block % 3 * 16
        tiny[row, k : k + 16] *= 2.0 ** (-1.25 * block)
    cases["tiny_blocks"] = tiny

    outlier = 0.01 * normal(16, 64)
    outlier[9, 33] = -300
    cases["outlier"] = outlier

    signs = torch.zeros(3, 16)
    signs[0] = torch.tensor([1, -1, -0.0, 0, 1e-7, -1e-7, 6e-8, -6e-8, 1e-5, -1e-5, 0.04, -0.04, 0.5, -0.5, 0, -0.0])
    signs[1] = torch.tensor([-0.0] * 8 + [-1e-7] * 8)
    signs[2] = torch.tensor([-1.0, 1e-3, -1e-3, 1e-40, -1e-40, 1e-38, -1e-38, -0.0] * 2)
    cases["signed_zero"] = signs

    # A largest weight of 2688 / 2^12 makes ModelOpt's global scale a power of two, so that weights can lie exactly on
    # the decision points of E2M1, under every mantissa of the block scale.
    g = 2.0**-12
    points = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    row = torch.cat([points, -points, torch.tensor([6.0, -6.0])])
    ties = torch.stack([row * e4m3(byte) * g for byte in range(0x30, 0x50)]).reshape(8, 64)
    ties[7, 63] = 2688 * g
    cases["code_ties"] = ties

    # Largest weights exactly between two block scales, subnormal ones too, and on the block scales themselves.
    between = [(e4m3(b) + e4m3(b + 1)) / 2 for b in range(0x7E)]
    blocks = torch.stack([(0.3 * normal(16)).clamp(-1, 1) * 6 * m * g for m in between + between[:2]])
    for i, m in enumerate(between):
        blocks[i, i % 16] = 6 * m * g * (-1) ** i
    blocks[126, 3], blocks[127, 4] = 2688 * g, 6 * 2**-9 * g
    cases["scale_ties"] = blocks.reshape(8, 256)
    on = torch.stack([(0.3 * normal(16)).clamp(-1, 1) * 6 * e4m3(b) * g for b in range(1, 0x11)])
    for i in range(16):
        on[i, i] = 6 * e4m3(i + 1) * g
    on[15, 0] = 2688 * g
    cases["subnormal_scales"] = on.reshape(4, 64)

    # In FP32 the last bits decide: largest weights next to those that lie between two block scales, ...
    a = torch.tensor(0.1234567) + 1e-5
    near = (0.3 * normal(128, 16)).clamp(-1, 1)
    for i in range(128):
        middle = (e4m3(0x20 + i // 2) + e4m3(0x21 + i // 2)) / 2
        top = [a / 2688 * 6 * middle, a / 1536 * 6 * middle, a / 1536 * 4 * middle, a * middle / 448][i % 4]
        top = ulps(top, i // 4 % 5 - 2)
        near[i] *= top
        near[i, i % 16] = top
    near[127, 0] = a
    cases["near_scale_ties"] = near.reshape(8, 256)

    # ... and weights next to decision points, under steps as ModelOpt and as compressed-tensors compute them.
    g, d = a / 2688, (1 / a) * 2688
    near = torch.zeros(64, 16)
    for i in range(64):
        scale = torch.tensor(e4m3(0x28 + i // 2))
        step = scale * g if i % 2 else scale / d
        near[i] = torch.cat([ulps(torch.cat([points, -points]) * step, i % 3 - 1), step * 6 * torch.ones(2)])
    near[63, 15] = a
    cases["near_code_ties"] = near.reshape(4, 256)

    # Below what ModelOpt's calibration takes for zero.
    cases["faint"] = 1e-8 * normal(7, 48).clamp(-3, 3)
    return cases


def beyond_448():
    """Weights for a global scale of 2^-6 that is given: block scales around 448, 464 and far above."""
    random = torch.Generator().manual_seed(25)
    tops = [440, 447, 448, 449, 456, 463, 464, 465, 470, 480, 512, 4096, 1e5, 448.5, 432, 2.0**-11]
    blocks = torch.stack([torch.randn(16, generator=random).clamp(-1, 1) * 6 * t * 2.0**-6 for t in tops])
    blocks[range(16), range(16)] = torch.tensor([6 * t * 2.0**-6 for t in tops])
    return blocks.reshape(4, 64)


# --- ModelOpt -----------------------------------------------------------------------------------------


def modelopt_max(weight, given=None):
    """The dynamic path, that of plain NVFP4."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    g = None if given is None else torch.tensor(given)
    quantized, scales, g = NVFP4QTensor.quantize(weight.clone(), 16, weights_scaling_factor_2=g)
    return quantized._quantized_data, scales, g


def interpret_modelopt_kernels():
    """Lets ModelOpt's Triton kernels run without a GPU. Only what asks for one is replaced."""
    import modelopt.torch.kernels.quantization.common.nvfp4_quant as common
    import modelopt.torch.kernels.quantization.gemm.fp4_kernel as fp4_kernel
    import modelopt.torch.kernels.quantization.gemm.nvfp4_fp8_sweep as sweep
    import modelopt.torch.quantization.calib.mse as mse
    import modelopt.torch.quantization.tensor_quant as tensor_quant

    class Libdevice:
        isnan = staticmethod(lambda x: x != x)

    common.libdevice = Libdevice
    torch.cuda.device = lambda device: nullcontext()
    tensor_quant.triton_kernel.IS_AVAILABLE = True
    tensor_quant.triton_kernel.static_blockwise_fp4_fake_quant = fp4_kernel.static_blockwise_fp4_fake_quant

    def nvfp4_fp8_scale_sweep(x, global_amax, block_size):
        blocks = x.numel() // block_size
        best = torch.empty(blocks)
        candidates = sweep.fp8_scale_candidates()
        sweep._fp8_scale_sweep_kernel.fn[((blocks + 15) // 16,)](
            x.contiguous().view(-1).float(), candidates, global_amax.float().reshape(1), best, blocks,
            BLOCK_SIZE=block_size, NUM_CANDIDATES=candidates.numel(), BLOCKS_PER_PROGRAM=16)
        return best

    import modelopt.torch.kernels.quantization.gemm as gemm

    gemm.nvfp4_fp8_scale_sweep = nvfp4_fp8_scale_sweep
    mse.NVFP4MSECalibrator._can_use_triton_fast_path = lambda self, x: True


def modelopt_static(weight, config):
    """mtq.quantize and the export of a linear layer, with a static config."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import quant_utils

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
            self.fc.weight.data = weight.clone()

        def forward(self, x):
            return self.fc(x)

    model = mtq.quantize(Model(), getattr(mtq, config), forward_loop=lambda m: None)
    g = quant_utils.get_weight_scaling_factor_2(model.fc)
    scales = quant_utils.get_weight_scaling_factor(model.fc)
    codes = quant_utils.to_quantized_weight(model.fc.weight.data.clone(), scales, "nvfp4", g, 16)
    return codes, scales, g


# --- compressed-tensors and llm-compressor -------------------------------------------------------------


def compressed_tensors_max(weight, given=None):
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from llmcompressor.observers import Observer

    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    assert scheme.weights.observer in (None, "memoryless_minmax"), scheme.weights.observer
    observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=scheme.weights)
    observer(weight.clone())
    if given is None:
        found = observer.get_qparams()
        scale, zero_point, g = found["scale"], found["zero_point"], found["global_scale"]
    else:
        g = torch.tensor([given])
        scale, zero_point = calculate_qparams(observer.min_vals, observer.max_vals, scheme.weights, g)
    state = {"weight": weight.clone(), "weight_scale": scale, "weight_global_scale": g, "weight_zero_point": zero_point}
    packed = NVFP4PackedCompressor.compress(state, scheme)
    return packed["weight_packed"], packed["weight_scale"], packed["weight_global_scale"]


# --- Files --------------------------------------------------------------------------------------------


def store(path, producer, cases, types, given=None):
    tensors = {}
    for name, weights in cases.items():
        for suffix in types:
            weight = weights.to(TYPES[suffix])
            if not torch.isfinite(weight).all():
                continue  # beyond FP16
            codes, scales, g = producer(weight) if given is None else producer(weight, given)
            key = f"{name}.{suffix}."
            tensors[key + "weight"] = weight
            tensors[key + "codes"] = codes
            tensors[key + "block_scale"] = scales.to(torch.float8_e4m3fn).view(torch.uint8)
            tensors[key + "global_scale"] = g.float().reshape(1)
            if given is None:
                tensors[key + "global_amax"] = weight.float().abs().max().reshape(1)
    made_with = {p: version(p) for p in ("torch", "nvidia-modelopt", "compressed-tensors", "llmcompressor", "triton")}
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata=made_with)
    print(path, os.path.getsize(path), "bytes,", len(tensors), "tensors")


def main(folder):
    cases = inputs()
    everything = list(TYPES)
    store(f"{folder}/modelopt_max.safetensors", modelopt_max, cases, everything)
    store(f"{folder}/modelopt_max_given.safetensors", modelopt_max, {"beyond_448": beyond_448()}, everything, 2.0**-6)
    store(f"{folder}/compressed_tensors_max.safetensors", compressed_tensors_max, cases, everything)
    store(f"{folder}/compressed_tensors_max_given.safetensors", compressed_tensors_max,
          {"beyond_448": beyond_448()}, everything, 2.0**6)

    interpret_modelopt_kernels()
    static = dict(cases)
    four_over_six = lambda w: modelopt_static(w, "NVFP4_FOUR_OVER_SIX_CFG")
    store(f"{folder}/modelopt_four_over_six.safetensors", four_over_six, static, ["bf16", "fp32"])
    sweep = lambda w: modelopt_static(w, "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG")
    static.pop("normal")
    store(f"{folder}/modelopt_mse.safetensors", sweep, static, ["bf16", "fp32"])


if __name__ == "__main__":
    main(sys.argv[1])
