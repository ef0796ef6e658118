"""Makes the golden data of MXFP6 by running compressed-tensors' own code on CPU tensors; see make_mx.py.

    python -m venv venv && venv/bin/pip install llmcompressor==0.14.0.1 torch==2.14.0 safetensors==0.8.0
    venv/bin/pip install --no-deps compressed-tensors==0.20.0
    venv/bin/python tests/golden/quantize/make_mxfp6.py tests/golden/quantize

compressed_tensors_mxfp6.safetensors has the cases of make_mx.py, codes [n, 3k/4], and every decision point of E2M3.
"""

import sys

import torch
from make_mx import compressed_tensors, inputs, store, TYPES, ulps


def mxfp6_compressor():
    from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor

    return MXFP6PackedCompressor


def code_ties():
    """Every number of E2M3, the middles between them, and their neighbours, under the scales 2^0 and 2^-5."""
    numbers = torch.tensor([m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)])
    points = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2, torch.tensor([7.7, 7.74])])
    points = torch.cat([points] + [ulps(points[points > 0], i) for i in (-1, 1)])
    points = torch.cat([points, -points])
    points = torch.cat([points, torch.zeros(-len(points) % 31)]).reshape(-1, 31)
    block = torch.cat([points, torch.full((len(points), 1), 7.5)], dim=1)
    return torch.cat([block, block * 2.0**-5])


def edges():
    """Largest weights at 1.9375 times a power of two, from which compressed-tensors takes the next scale."""
    random = torch.Generator().manual_seed(36)
    tops = torch.stack([ulps(torch.tensor(1.9375 * 2.0**e), i) for e in range(-16, 15) for i in (-(1 << 16), -1, 0, 1, 1 << 16)])
    blocks = (2 * torch.rand(len(tops), 32, generator=random) - 1) * 0.9 * tops[:, None]
    blocks[range(len(tops)), torch.randint(0, 32, (len(tops),), generator=random)] = tops
    return blocks


def main(folder):
    cases = {name: w for name, w in inputs().items() if name != "code_ties"}
    cases |= {"code_ties": code_ties(), "six_edges": edges()}
    store(f"{folder}/compressed_tensors_mxfp6.safetensors", compressed_tensors("MXFP6A16", mxfp6_compressor), cases, list(TYPES))


if __name__ == "__main__":
    main(sys.argv[1])
