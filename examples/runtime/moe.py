#!/usr/bin/env python3
"""Runs an MoE layer of a twofour artifact on torch tensors, through libtwofour.so and ctypes alone.

    moe.py ARTIFACT --dense BF16 [--layer NAME] [--library libtwofour.so] [--tokens M] [--device cpu|cuda|cuda:1]

BF16 is what `twofour convert ARTIFACT BF16 --to bf16` made: plain torch on its weights says what must come out.
"""
import argparse
import ctypes as c
import json
import pathlib
import sys

import torch

ABI = 2  # TWOFOUR_ABI of the header that this file follows
CUDA, CUDA_DEVICE_0 = 1, 16
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class LayerInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("layout", c.c_char_p), ("experts", c.c_int64),
                ("hidden", c.c_int64), ("intermediate", c.c_int64), ("gated", c.c_int32), ("top_k", c.c_int32),
                ("weight_bytes", c.c_uint64), ("device_bytes", c.c_uint64)]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("expert_map", c.POINTER(c.c_int32)), ("expert_map_size", c.c_int64),
                ("weight_on_input", c.c_int32), ("limit", c.c_float)]


class Tokens(c.Structure):
    _fields_ = [("size", c.c_size_t), ("m", c.c_int64), ("top_k", c.c_int64), ("dtype", c.c_int32),
                ("hidden", c.c_void_p), ("topk_ids", c.c_void_p), ("topk_weights", c.c_void_p),
                ("out", c.c_void_p), ("error_flag", c.c_void_p)]


class Library:
    """libtwofour.so with the types of its functions; a call that fails raises what twofour_last_error says."""

    def __init__(self, path):
        self.lib = c.CDLL(path)
        pointer, out = c.c_void_p, c.POINTER(c.c_void_p)
        self.declare("open", c.c_char_p, out)
        self.declare("get_layer_info", pointer, c.c_int64, c.POINTER(LayerInfo))
        self.declare("find_layer", pointer, c.c_char_p, c.POINTER(c.c_int64))
        self.declare("load", pointer, c.c_int64, c.c_int, c.POINTER(Options), out)
        self.declare("workspace_bytes", pointer, c.c_int64, c.c_int64, c.POINTER(c.c_size_t))
        self.declare("forward", pointer, c.POINTER(Tokens), pointer, c.c_size_t, pointer)
        self.declare("route", pointer, c.c_int64, pointer, c.c_int64, c.c_int64, pointer, pointer)
        if not hasattr(self.lib, "twofour_abi") or self.lib.twofour_abi() < ABI:
            raise RuntimeError(f"{path}: expected a library of ABI {ABI} or later")
        self.lib.twofour_last_error.restype = c.c_char_p
        self.lib.twofour_layer_count.restype = c.c_int64
        self.lib.twofour_layer_count.argtypes = [pointer]
        for name in ("close", "unload"):
            getattr(self.lib, f"twofour_{name}").argtypes = [pointer]
            getattr(self.lib, f"twofour_{name}").restype = None

    def declare(self, name, *types):
        function = getattr(self.lib, f"twofour_{name}")
        function.argtypes = types

        def call(*arguments):
            if function(*arguments) != 0:
                raise RuntimeError(self.lib.twofour_last_error().decode())

        setattr(self, name, call)


class Artifact:
    def __init__(self, library, path):
        self.library, self.handle = library, c.c_void_p()
        library.open(path.encode(), c.byref(self.handle))

    def __del__(self):
        if self.handle:
            self.library.lib.twofour_close(self.handle)

    def find(self, name):
        index = c.c_int64()
        self.library.find_layer(self.handle, name.encode(), c.byref(index))
        return index.value

    def info(self, layer):
        info = LayerInfo(size=c.sizeof(LayerInfo))
        self.library.get_layer_info(self.handle, layer, c.byref(info))
        return info

    def route(self, layer, hidden, top_k):
        """The layer's own router: hidden [M, H] to ids int32 and weights float32 [M, top_k], on the CPU."""
        hidden = hidden.float().cpu().contiguous()
        ids = torch.empty(hidden.shape[0], top_k, dtype=torch.int32)
        weights = torch.empty(hidden.shape[0], top_k)
        self.library.route(self.handle, layer, hidden.data_ptr(), hidden.shape[0], top_k, ids.data_ptr(),
                           weights.data_ptr())
        return ids, weights


class MoeLayer:
    """A layer on a device: layer(hidden, ids, weights, workspace) on the current stream, without waiting."""

    def __init__(self, artifact, layer, device, limit=0.0):
        self.library, self.handle = artifact.library, c.c_void_p()
        self.hidden = artifact.info(layer).hidden
        self.device = torch.device(device)
        options = Options(size=c.sizeof(Options), limit=limit)
        index = self.device.index
        where = 0 if self.device.type == "cpu" else CUDA if index is None else CUDA_DEVICE_0 + index
        self.library.load(artifact.handle, layer, where, c.byref(options), c.byref(self.handle))

    def __del__(self):
        if self.handle:
            self.library.lib.twofour_unload(self.handle)

    def workspace(self, max_tokens, top_k):
        """Memory for one call at a time. Streams and captured graphs each want their own; a graph points into it for
        good."""
        size = c.c_size_t()
        self.library.workspace_bytes(self.handle, max_tokens, top_k, c.byref(size))
        return torch.empty(size.value, dtype=torch.uint8, device=self.device)

    def __call__(self, hidden, ids, weights, workspace, out=None):
        m, top_k = ids.shape
        shapes = {"hidden": (hidden, (m, self.hidden)), "ids": (ids, (m, top_k)), "weights": (weights, (m, top_k))}
        for name, (tensor, shape) in shapes.items():
            if tuple(tensor.shape) != shape or tensor.device.type != self.device.type or not tensor.is_contiguous():
                raise ValueError(f"{name}: expected {shape}, contiguous on {self.device}, "
                                 f"found {tuple(tensor.shape)} on {tensor.device}")
        if ids.dtype != torch.int32 or weights.dtype != torch.float32:
            raise ValueError(f"expected int32 ids and float32 weights, found {ids.dtype} and {weights.dtype}")
        out = torch.empty_like(hidden) if out is None else out
        stream = torch.cuda.current_stream(hidden.device).cuda_stream if self.device.type == "cuda" else None
        tokens = Tokens(c.sizeof(Tokens), m, top_k, DTYPES[hidden.dtype], hidden.data_ptr(), ids.data_ptr(),
                        weights.data_ptr(), out.data_ptr(), None)
        self.library.forward(self.handle, c.byref(tokens), workspace.data_ptr(), workspace.numel(), stream)
        return out


def read_tensors(directory, prefix):
    """BF16 tensors of a checkpoint whose names begin so, by the rest of their names."""
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if not name.startswith(prefix):
                continue
            if entry["dtype"] != "BF16":
                sys.exit(f"{path}: {name}: expected BF16, found {entry['dtype']}")
            first, last = (begin + at for at in entry["data_offsets"])
            values = torch.frombuffer(bytearray(data[first:last]), dtype=torch.bfloat16)
            tensors[name[len(prefix):]] = values.reshape(entry["shape"])
    return tensors


def torch_moe(weights_of, hidden, ids, weights):
    """The layer in float64: sum over experts of weight * down(silu(gate) * up)."""
    out = torch.zeros_like(hidden, dtype=torch.float64)
    for expert in ids.unique().tolist():
        gate, up, down = (weights_of[f".{expert}.{name}_proj.weight"].double() for name in ("gate", "up", "down"))
        token, slot = (ids == expert).nonzero(as_tuple=True)
        x = hidden[token].double()
        y = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        out.index_add_(0, token, y * weights[token, slot].double()[:, None])
    return out


def relative_error(got, want):
    got, want = got.double().cpu(), want.double().cpu()
    return ((got - want).norm() / want.norm()).item()


def check(name, got, want):
    """The dense weights, BF16 tokens and what g8 keeps between its multiplications are rounded to 8 bits, 2^-9 each
    at most; a wrong row, scale or expert gives an error near 1."""
    error = relative_error(got, want)
    print(f"{name}: relative error {error:.2e}")
    if not error < 4 * 2**-9:
        sys.exit(f"{name}: expected a relative error below {4 * 2**-9}, found {error}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("artifact")
    parser.add_argument("--dense", required=True)
    parser.add_argument("--layer", default="0")
    parser.add_argument("--library", default="libtwofour.so")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    artifact = Artifact(Library(args.library), args.artifact)
    index = artifact.find(args.layer)
    info = artifact.info(index)
    print(f"{info.name.decode()}: {info.layout.decode()}, {info.experts} experts, H {info.hidden}, "
          f"I {info.intermediate}, {info.weight_bytes / 1e6:.1f} MB")
    dense = read_tensors(args.dense, info.name.decode())

    # Tokens, and where the layer's own router sends them
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, info.hidden)
    ids, weights = artifact.route(index, hidden, info.top_k)
    want = torch_moe(dense, hidden, ids, weights)

    layer = MoeLayer(artifact, index, args.device)
    workspace = layer.workspace(args.tokens, info.top_k)
    ids, weights = ids.to(args.device), weights.to(args.device)
    for dtype in DTYPES:
        out = layer(hidden.to(args.device, dtype), ids, weights, workspace)
        check(f"{args.device} {dtype}", out, want)

    if args.device != "cpu":
        # One capture, replayed with other tokens
        torch.cuda.set_device(torch.device(args.device).index or 0)
        x, out = hidden.to("cuda", torch.bfloat16), torch.empty(hidden.shape, device="cuda", dtype=torch.bfloat16)
        layer(x, ids, weights, workspace, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer(x, ids, weights, workspace, out)
        other = torch.randn_like(hidden)
        x.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        check("cuda graph", out, torch_moe(dense, other, ids.cpu(), weights.cpu()))
    print("done")


if __name__ == "__main__":
    main()
