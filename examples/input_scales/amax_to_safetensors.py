#!/usr/bin/env python3
"""Turns ModelOpt's calibration dumps into the file that `twofour --input-scale 'from FILE'` reads.

    amax_to_safetensors.py DUMPS FILE [--fill] [--keep-names]

DUMPS holds amax_dict_rank{r}-mp{mp}.pt of every rank, as ModelOpt's examples for DeepSeek-V3 and DeepSeek-V4 save them.
FILE gets `M.amax` F32 [] for each module M: the largest magnitude of its inputs over all ranks.
"""
import argparse
import json
import math
import pathlib
import re
import struct
import sys

import torch

FILE = re.compile(r"amax_dict_rank(\d+)-mp(\d+)\.pt")
# DeepSeek-V4's experts hold the quantizers of their three linears: "layers.0.ffn.experts.5.w1_input_quantizer._amax".
IN_EXPERT = re.compile(r"(.+\.w[123])_input_quantizer\._amax")
IN_LINEAR = re.compile(r"(.+)\.input_quantizer\._amax")
# DeepSeek-V3 is calibrated under the names of its own inference code; checkpoints have those of transformers.
NAMES = {"ffn": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "attn": "self_attn", "wq": "q_proj",
         "wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv_a": "kv_a_proj_with_mqa", "wkv_b": "kv_b_proj", "wo": "o_proj",
         "head": "lm_head"}
EXPERT = re.compile(r"(.+)\.\d+\.(\w+)")


def find_dumps(folder):
    """The file of each rank; a folder with those of two runs, or without some, is refused."""
    found = {}
    for path in folder.iterdir():
        if match := FILE.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    if len(found) != 1:
        sys.exit(f"{folder}: expected amax_dict_rank*-mp*.pt of one run, found {sorted(found) or 'none'}")
    (ranks, files), = found.items()
    missing = sorted(set(range(ranks)) - set(files))
    if missing:
        sys.exit(f"{folder}: expected ranks 0 to {ranks - 1}, found none of {missing}")
    return [files[rank] for rank in sorted(files)]


def name_in_checkpoint(module):
    """The name that transformers gives a linear of DeepSeek-V3's inference code; others stay. The indexer's names
    are the same in both."""
    parts = module.split(".")
    if parts[0] not in ("layers", "head"):
        return module
    if "indexer" in parts:
        at = parts.index("indexer")
        renamed = [NAMES.get(part, part) for part in parts[:at]] + parts[at:]
    else:
        renamed = [NAMES.get(part, part) for part in parts]
    return ".".join((["model"] if parts[0] == "layers" else []) + renamed)


def read_dump(path, keep_names, amax):
    """Adds the largest magnitudes of one rank; 0 counts as none."""
    for key, value in torch.load(path, map_location="cpu", weights_only=True).items():
        if "pre_quant_scale" in key:
            sys.exit(f"{path}: {key}: expected inputs as they are, found a scale before them")
        in_expert, in_linear = IN_EXPERT.fullmatch(key), IN_LINEAR.fullmatch(key)
        if not in_expert and not in_linear:
            continue  # of weights, and of attention's products
        module = (in_expert or in_linear)[1]
        if in_linear and not keep_names:
            module = name_in_checkpoint(module)
        if value.numel() != 1:
            sys.exit(f"{path}: {key}: expected one number, found {list(value.shape)}")
        number = value.float().item()
        if not math.isfinite(number) or number < 0:
            sys.exit(f"{path}: {key}: expected a finite magnitude, found {number}")
        if number > 0:
            amax[module] = max(amax.get(module, 0.0), number)


def quantized_layers(folder, keep_names):
    """The modules that calibration quantized, where a file beside the dumps names them."""
    manifest, config = folder / "quantized_layers_manifest.json", folder / "hf_quant_config.json"
    if manifest.exists():
        return list(json.loads(manifest.read_text())["quantized_layers"])
    if config.exists():
        layers = json.loads(config.read_text())["quantization"].get("quantized_layers", {})
        return [layer if keep_names else name_in_checkpoint(layer) for layer in layers]
    return []


def fill(amax, missing):
    """Experts that no token reached take the largest of their projection in the layer, or in the model."""
    def projection(module):
        return EXPERT.fullmatch(module)

    layer, model = {}, {}
    for module, number in amax.items():
        if match := projection(module):
            layer[match[1], match[2]] = max(layer.get((match[1], match[2]), 0.0), number)
            model[match[2]] = max(model.get(match[2], 0.0), number)
    for module in missing:
        match = projection(module)
        number = match and (layer.get((match[1], match[2])) or model.get(match[2]))
        if not number:
            sys.exit(f"{module}: expected a calibrated expert with that projection, found none")
        amax[module] = number


def write_file(path, amax):
    tensors = {f"{module}.amax": struct.pack("<f", number) for module, number in sorted(amax.items())}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in tensors:
        header[name] = {"dtype": "F32", "shape": [], "data_offsets": [at, at + 4]}
        at += 4
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--fill", action="store_true",
                        help="give experts without a magnitude the largest of their projection in the layer, or in the model")
    parser.add_argument("--keep-names", action="store_true", help="do not rename DeepSeek-V3's linears")
    args = parser.parse_args()

    amax = {}
    for path in find_dumps(args.dumps):
        read_dump(path, args.keep_names, amax)
    if not amax:
        sys.exit(f"{args.dumps}: expected magnitudes of inputs (..._quantizer._amax), found none")
    missing = [module for module in quantized_layers(args.dumps, args.keep_names) if module not in amax]
    if missing and not args.fill:
        sys.exit(f"{args.dumps}: expected a magnitude of every quantized module, found none of {len(missing)}, the first "
                 f"{missing[0]}; --fill takes it from other experts")
    fill(amax, missing)
    write_file(args.file, amax)
    print(f"{args.file}: {len(amax)} modules, {len(missing)} of them filled")


if __name__ == "__main__":
    main()
