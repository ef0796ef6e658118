#!/usr/bin/env python3
"""Dumps as ModelOpt's calibration saves them, and what must come of them.

    check.py dump CHECKPOINT DUMPS            magnitudes of two ranks for the routed experts
    check.py fault DUMPS BAD KIND             a copy that is spoiled: rank, run, shape, nan or missing
    check.py compare NVFP4 DUMPS              every input scale against the dumps
"""
import json
import pathlib
import re
import shutil
import struct
import sys

import torch

LEAVES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
DEAD = 3  # an expert that no token reached
EXPERT = re.compile(r"((?:model\.)?layers\.(\d+)\.\w+\.experts)\.(\d+)\.(\w+)")


def tensors_of(checkpoint):
    """Names of all tensors, and the numbers of those that are F32 []."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            is_scalar = t["dtype"] == "F32" and t["shape"] == []
            found[name] = struct.unpack("<f", data[8 + size + begin:8 + size + end])[0] if is_scalar else None
    return found


def experts_of(checkpoint):
    """Routed experts but those of layers that predict further tokens, which calibration does not run."""
    layers = json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"]
    return sorted({m[0] for name in tensors_of(checkpoint) if (m := EXPERT.match(name)) and int(m[2]) < layers})


def magnitude(layer, expert, leaf, rank):
    """Gate and up see the same inputs."""
    return 3.0 + layer + 0.125 * expert + (7.0 if leaf in ("w2", "down_proj") else 0.0) + 0.5 * rank


def dump(checkpoint, folder):
    folder.mkdir()
    ranks, modules = [{}, {}], []
    for module in experts_of(checkpoint):
        block, layer, expert, leaf = EXPERT.fullmatch(module).groups()
        is_v4 = not block.startswith("model.")
        own = module if is_v4 else f"layers.{layer}.ffn.experts.{expert}.{LEAVES[leaf]}"
        modules.append(own)
        join = "_" if is_v4 else "."
        for rank, state in enumerate(ranks):
            if is_v4 and int(expert) % 2 != rank:
                continue  # experts are dealt to ranks; of DeepSeek-V3 both have all
            state[f"{own}{join}weight_quantizer._amax"] = torch.tensor(0.25)
            if not is_v4 or int(expert) != DEAD:
                state[f"{own}{join}input_quantizer._amax"] = torch.tensor(
                    magnitude(int(layer), int(expert), leaf, rank), dtype=torch.bfloat16)
    if not is_v4:
        ranks[0]["layers.0.attn.wq_a.input_quantizer._amax"] = torch.tensor([2.5])
        ranks[0]["layers.0.attn.kv_bmm_quantizer._amax"] = torch.tensor(1.5)
    for rank, state in enumerate(ranks):
        torch.save(state, folder / f"amax_dict_rank{rank}-mp2.pt")
    if is_v4:
        (folder / "quantized_layers_manifest.json").write_text(
            json.dumps({"quantization_format": "NVFP4_W4A4", "quantized_layers": modules, "world_size": 2}))


def fault(folder, bad, kind):
    shutil.copytree(folder, bad)
    first = bad / "amax_dict_rank0-mp2.pt"
    state = torch.load(first, weights_only=True)
    key = next(k for k in state if "input_quantizer" in k)
    if kind == "rank":
        (bad / "amax_dict_rank1-mp2.pt").unlink()
    if kind == "run":
        shutil.copy(first, bad / "amax_dict_rank0-mp4.pt")
    if kind == "shape":
        state[key] = torch.ones(2)
    if kind == "nan":
        state[key] = torch.tensor(float("nan"))
    if kind in ("shape", "nan"):
        torch.save(state, first)
    # "missing": the dead expert, without --fill.


def compare(checkpoint, folder):
    scales = tensors_of(checkpoint)
    is_v4 = (folder / "quantized_layers_manifest.json").exists()
    count = 0
    for module in experts_of(checkpoint):
        _, layer, expert, leaf = EXPERT.fullmatch(module).groups()
        layer, expert = int(layer), int(expert)
        rank = 1
        if is_v4:
            if expert == DEAD:
                expert = 7  # the largest of the layer
            rank = expert % 2
        amax = torch.tensor(magnitude(layer, expert, leaf, rank), dtype=torch.bfloat16).float()
        expected = (amax / 2688).item()
        found = scales.get(module + ".input_scale")
        if found != expected:
            sys.exit(f"{module}: expected an input scale of {expected}, found {found}")
        count += 1
    if count == 0:
        sys.exit(f"{checkpoint}: expected experts, found none")
    print(f"{checkpoint.name}: {count} input scales as in the dumps")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    paths = [pathlib.Path(word) for word in words[:2]]
    {"dump": dump, "fault": fault, "compare": compare}[command](*paths, *words[2:])
