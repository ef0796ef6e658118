"""Makes the golden data of MXFP8 and MXFP4 by running the producers' own code on CPU tensors.

    python -m venv venv && venv/bin/pip install nvidia-modelopt==0.47.0 llmcompressor==0.14.0.1 \
        compressed-tensors==0.19.0 torch==2.14.0 safetensors==0.8.0
    venv/bin/python tests/golden/quantize/make_mx.py tests/golden/quantize

A file for each producer and format. In it, for each case and weight type:
    CASE.TYPE.weight       [n, k]            the input
    CASE.TYPE.codes        [n, k] or [n, k/2]  U8, the bytes of E4M3 or two codes of E2M1
    CASE.TYPE.block_scale  [n, k/32]         U8, E8M0
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

os.environ["ATEN_CPU_CAPABILITY"] = "avx2"

import torch
from safetensors.torch import save_file

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def ulps(x, count):
    """The float32 that is `count` places further from zero."""
    return (x.float().view(torch.int32) + count).view(torch.float32)


def inputs():
    """name -> float32 weights; each type rounds them as it does."""
    random = torch.Generator().manual_seed(32)
    normal = lambda *shape: torch.randn(*shape, generator=random)
    cases = {"normal": 0.02 * normal(16, 256)}
    cases["heavy_tailed"] = 0.01 * normal(16, 64) * torch.exp(1.5 * normal(16, 64))

    zeros = 0.05 * normal(7, 96)
    zeros[0] = 0
    zeros[3, 32:64] = 0
    zeros[5, :32] = -0.0
    zeros[6, ::2] = -0.0
    cases["zeros"] = zeros

    signs = torch.zeros(2, 32)
    signs[0] = torch.tensor([1, -1, -0.0, 0, 1e-7, -1e-7, 6e-8, -6e-8, 1e-5, -1e-5, 0.04, -0.04, 0.5, -0.5, 0, -0.0] * 2)
    signs[1] = torch.tensor([-30000.0, 1e-3, -1e-3, 1e-40, -1e-40, 1e-38, -1e-38, -6e-8] * 4)
    cases["signed_zero"] = signs

    # Every decision point of E2M1 and of E4M3, and its neighbours, under scales of 2^0 and 2^-5.
    e2m1 = torch.tensor([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0])
    codes = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    e4m3 = torch.cat([codes, (codes[1:] + codes[:-1]) / 2])
    rows = []
    for points, top in [(e2m1, 6.0), (e4m3, 448.0)]:
        points = torch.cat([points] + [ulps(points[points > 0], i) for i in (-1, 1)])
        points = points[points <= top]
        points = torch.cat([points, -points])
        points = torch.cat([points, torch.zeros(-len(points) % 31)]).reshape(-1, 31)
        block = torch.cat([points, torch.full((len(points), 1), top)], dim=1)
        rows += [block, -block * 2.0**-5]
    cases["code_ties"] = torch.cat(rows)

    # Largest weights at the edges where a scale changes: powers of two, 1.5 and 1.75 of them, 6 and 448 times
    # them, and their neighbours.
    def edges(exponents, around):
        tops = []
        for e in exponents:
            for m in (1.0, 1.5, 1.75):
                tops += [ulps(torch.tensor(m * 2.0**e), i) for i in around]
        blocks = (0.3 * normal(len(tops), 32)).clamp(-1, 1) * torch.stack(tops)[:, None]
        for i, top in enumerate(tops):
            blocks[i, i % 32] = top * (-1) ** i
        return blocks

    # Where float32's logarithm rounds to the power of two itself: further from 1, by more places.
    near = [-2, -1, 0, 1, 2, 3, 5, 6, 11, 12, 22, 23, 24, 44, 45, 46]
    cases["scale_edges"] = edges([-64, -63, -33, -20, -17, -16, -9, -8, -5, -3, -1, 0, 1, 2, 4, 7, 14], near)
    cases["half_scale_edges"] = edges(range(-14, 15), [0, 1 << 13, -(1 << 13), 1 << 16, -(1 << 16)])
    # Down to the smallest numbers and up to the largest.
    tiny = [2.0**-149, 3 * 2.0**-149, 1.5 * 2.0**-133, 2.0**-130, 2.0**-127, 2.0**-126, 1.5 * 2.0**-127, 448 * 2.0**-127,
            449 * 2.0**-127, 6 * 2.0**-127, 6.1 * 2.0**-127, 2.0**-118, 1.75 * 2.0**-119]
    blocks = (0.3 * normal(len(tiny), 32)).clamp(-1, 1) * torch.tensor(tiny)[:, None]
    blocks[:, 5] = torch.tensor(tiny)
    cases["tiny"] = blocks
    large = [1.0e38, 1.7e38, 2.0**127, 1.74 * 2.0**127]
    blocks = (0.3 * normal(len(large), 32)).clamp(-1, 1) * torch.tensor(large)[:, None]
    blocks[:, 9] = torch.tensor(large)
    blocks[:, 10] = -1e-40
    cases["large"] = blocks
    # FP16's own smallest numbers, where compressed-tensors' scale becomes zero and then 1.
    tiny = [2.0**-24, 2.0**-20, 0.74 * 2.0**-14, 0.75 * 2.0**-14, 0.8 * 2.0**-14, 0.9 * 2.0**-14, 2.0**-14, 1.8 * 2.0**-14]
    blocks = (0.3 * normal(len(tiny), 32)).clamp(-1, 1) * torch.tensor(tiny)[:, None]
    blocks[:, 7] = torch.tensor(tiny)
    blocks[:, 8] = -(2.0**-24)
    cases["half_tiny"] = blocks
    return cases


def every_exponent(largest):
    """Largest weights a few places above each power of two times `largest`: what float32's logarithm makes of them."""
    random = torch.Generator().manual_seed(33)
    tops = []
    for e in range(-126, 119):
        for i in (0, 1, 2, 5, 6, 11, 12, 22, 23, 44, 45):
            # The number whose quotient by `largest` is the wanted one, or next to it.
            tops.append(ulps(torch.tensor(2.0**e), i) * largest)
    tops = torch.stack(tops)
    blocks = torch.zeros(len(tops), 32)
    blocks[range(len(tops)), torch.randint(0, 32, (len(tops),), generator=random)] = tops
    return blocks


def modelopt_mxfp8(weight):
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    scales = MXFP8QTensor.get_weights_scaling_factor(weight)
    return MXFP8QTensor.quantize_with_scale(weight, scales), scales


def modelopt_mxfp4(weight):
    from modelopt.torch.quantization.qtensor import MXFP4QTensor

    quantized, scales = MXFP4QTensor.quantize(weight.clone(), 32)
    return quantized._quantized_data, scales.reshape(weight.shape[0], -1)


def compressed_tensors(preset, compressor):
    def quantize(weight):
        from compressed_tensors.quantization import preset_name_to_scheme
        from llmcompressor.observers import Observer

        scheme = preset_name_to_scheme(preset, ["Linear"])
        assert scheme.weights.observer in (None, "memoryless_minmax"), scheme.weights.observer
        observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=scheme.weights)
        observer(weight.clone())
        found = observer.get_qparams()
        state = {"weight": weight.clone(), "weight_scale": found["scale"], "weight_zero_point": found["zero_point"]}
        packed = compressor().compress(state, scheme)
        return packed.get("weight_packed", packed.get("weight")), packed["weight_scale"]

    return quantize


def mxfp8_compressor():
    from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor

    return MXFP8QuantizationCompressor


def mxfp4_compressor():
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor

    return MXFP4PackedCompressor


def store(path, producer, cases, types):
    tensors = {}
    for name, weights in cases.items():
        for suffix in types if name != "every_exponent" else ["fp32"]:
            weight = weights.to(TYPES[suffix])
            if not torch.isfinite(weight).all():
                continue  # beyond FP16
            codes, scales = producer(weight)
            key = f"{name}.{suffix}."
            tensors[key + "weight"] = weight
            tensors[key + "codes"] = codes.view(torch.uint8)
            tensors[key + "block_scale"] = scales.view(torch.uint8)
    made_with = {}
    for package in ("torch", "nvidia-modelopt", "compressed-tensors", "llmcompressor"):
        try:
            made_with[package] = version(package)
        except PackageNotFoundError:
            pass  # not every format needs it
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata=made_with)
    print(path, os.path.getsize(path), "bytes,", len(tensors), "tensors")


def main(folder):
    cases, types = inputs(), list(TYPES)
    store(f"{folder}/modelopt_mxfp8.safetensors", modelopt_mxfp8, cases | {"every_exponent": every_exponent(448)}, types)
    store(f"{folder}/modelopt_mxfp4.safetensors", modelopt_mxfp4, cases | {"every_exponent": every_exponent(6)}, types)
    store(f"{folder}/compressed_tensors_mxfp8.safetensors", compressed_tensors("MXFP8A16", mxfp8_compressor), cases, types)
    store(f"{folder}/compressed_tensors_mxfp4.safetensors", compressed_tensors("MXFP4A16", mxfp4_compressor), cases, types)


if __name__ == "__main__":
    main(sys.argv[1])
