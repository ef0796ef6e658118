#!/usr/bin/env python3
"""Holds the module, transformers and the forward of the vLLM plugin on a CUDA device against the CPU.

    TWOFOUR_LIBRARY=libtwofour.so gpu_check.py [--device cuda|cpu] [--folder DIR] [--layers N] [--small]

Needs torch, transformers 5 and a library with the CUDA kernels; checkpoints are made here by synth. With --device cpu
the script itself is tried, without what only a device has. A line a check; ends with 1 where one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import support  # noqa: F401  (the module's path)
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import twofour
import twofour.integrations.transformers  # noqa: F401
from twofour.integrations.slices import rank_slice
from twofour.integrations.stored_block import StoredBlock, layer_shape
from twofour.integrations.stored_linear import StoredLinear

LAYOUTS = ("v7", "v7-packed", "g8")
#: Activations in FP16, and BF16 with many rows an expert, against float32 on the CPU; see kernels/README.md.
KERNEL = 2**-8
#: Weights rounded to BF16, 2^-9 each at most.
BF16_ROUNDINGS = 4 * 2**-9
logging.disable_progress_bar()
failures: list[str] = []


def check(name: str, value: float, most: float, unit: str = "") -> None:
    passed = value <= most
    print(f"{'ok  ' if passed else 'FAIL'}  {name}: {value:.4g}{unit}, at most {most:.4g}{unit}", flush=True)
    if not passed:
        failures.append(name)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    return float((got - want).norm() / want.norm())


def median_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The median over tokens: a router that chooses another expert at a tie changes one token at a time."""
    got, want = got.detach().double().cpu().flatten(0, -2), want.detach().double().cpu().flatten(0, -2)
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).median())


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    print(f"      {name}: {time.monotonic() - begin:.1f} s", flush=True)


class Checks:
    def __init__(self, folder: Path, device: str, layers: int, small: bool) -> None:
        self.folder, self.device, self.layers, self.small = folder, device, layers, small
        self.is_cuda = device != "cpu"

    def artifact(self, shape: str, layout: str, **options: Any) -> Path:
        source, artifact = self.folder / shape, self.folder / f"{shape}-{layout}"
        if not source.exists():
            with timed(f"synth {shape}"):
                twofour.command("synth", source, shape=shape, small=self.small, **options)
        if not artifact.exists():
            with timed(f"convert {shape} to {layout}"):
                twofour.convert(source, artifact, to=layout, no_verify=True)
        return artifact

    def layer_on_arrays(self) -> None:
        """Layer by DLPack: torch and CuPy, a stream of the caller's, a captured graph."""
        for layout in LAYOUTS:
            opened = twofour.Artifact(self.artifact("qwen3-moe", layout, layers=self.layers, vocab=4096))
            shape = opened.layers[0]
            on_cpu, layer = opened.load(shape.name, "cpu"), opened.load(shape.name, self.device)
            for m in (1, 4, 64):
                torch.manual_seed(m)
                x = torch.randn(m, shape.hidden)
                ids, weights = (torch.from_numpy(a) for a in opened.route(shape.name, x))
                want = on_cpu(x, ids, weights)
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    out = layer(x.to(self.device, dtype), ids.to(self.device), weights.to(self.device))
                    check(f"Layer {layout} m={m} {dtype}", relative_error(out, want), 2 * KERNEL)
            if self.is_cuda:
                self.graph_and_streams(layout, layer, on_cpu, x, ids, weights)

    def graph_and_streams(
        self, layout: str, layer: Any, on_cpu: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> None:
        arguments = [t.to(self.device) for t in (x, ids, weights)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = layer(*arguments)
        side.synchronize()
        check(f"Layer {layout} on another stream", relative_error(out, on_cpu(x, ids, weights)), 2 * KERNEL)

        place = torch.empty(layer.workspace_bytes(*ids.shape), dtype=torch.uint8, device=self.device)
        for name, call in (
            ("with its workspace", lambda: layer(*arguments, out=out, workspace=place)),
            ("with the graph's memory", lambda: layer(*arguments, out=out)),
        ):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            other = torch.randn_like(x)
            arguments[0].copy_(other)
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            check(f"Layer {layout} captured {name}", relative_error(out, on_cpu(other, ids, weights)), 2 * KERNEL)
            arguments[0].copy_(x)
        try:
            import cupy
        except ImportError:
            print("      skipped: no cupy")
            return
        of_cupy = [cupy.asarray(t.numpy()) for t in (x, ids, weights)]
        with cupy.cuda.Stream(non_blocking=True) as stream:
            got = layer(*of_cupy)
            stream.synchronize()
        check(f"Layer {layout} on CuPy", relative_error(torch.from_dlpack(got), on_cpu(x, ids, weights)), 2 * KERNEL)

    def whole_models(self) -> None:
        """Model on the device against the CPU: a prompt, tokens one by one, two threads at once."""
        for layout in (None, *LAYOUTS):
            options: dict[str, Any] = dict(layers=self.layers, vocab=4096)
            artifact = self.artifact("qwen3-moe", layout or "v7", **options)
            place = artifact if layout else self.folder / "qwen3-moe"
            on_cpu, model = twofour.Model(place), twofour.Model(place, self.device)
            most = 4 * KERNEL if layout else 2e-4
            tokens = list(range(1, 17))
            want, name = torch.from_numpy(on_cpu.logits(tokens)), f"Model {layout or 'as it is'}"
            check(f"{name} prompt, median token", median_error(torch.from_numpy(model.logits(tokens)), want), most)
            sequence = model.sequence()
            one_by_one = torch.stack([torch.from_numpy(sequence.append([token])) for token in tokens])
            check(f"{name} one by one, median token", median_error(one_by_one, want), most)
            found: list[Any] = [None, None]

            def run(i: int, model: Any = model, found: list[Any] = found) -> None:
                found[i] = model.generate(tokens, 8)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            alone = model.generate(tokens, 8)
            check(f"{name} tokens of two threads that differ", sum(f != alone for f in found), 0)

    def peak_of(self, load: Callable[[], Any]) -> tuple[Any, float, float]:
        """What `load` gives, and how much device memory it took at most and takes in the end, by cudaMemGetInfo."""
        gc.collect()  # models are in cycles
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        least, done = [before], threading.Event()

        def watch() -> None:
            while not done.is_set():
                least[0] = min(least[0], torch.cuda.mem_get_info()[0])
                time.sleep(0.002)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            loaded = load()
            torch.cuda.synchronize()
        finally:
            done.set()
            thread.join()
        after = torch.cuda.mem_get_info()[0]
        return loaded, before - min(least[0], after), before - after

    def transformers(self, shape: str, layers: int) -> None:
        """Memory, logits against the CPU and against BF16, generate() and a captured block."""
        options = dict(layers=layers, vocab=4096)
        ids = torch.arange(1, 17)[None]
        for layout in LAYOUTS:
            artifact = self.artifact(shape, layout, **options)
            files = sum(path.stat().st_size for path in artifact.glob("*.safetensors"))
            read = lambda **s: AutoModelForCausalLM.from_pretrained(artifact, **s)  # noqa: E731
            if self.is_cuda:
                torch.zeros(1, device=self.device)
                torch.cuda.synchronize()
                model, peak, held = self.peak_of(lambda: read(dtype=torch.bfloat16, device_map=self.device))
                check(f"{shape} {layout} peak memory after load over safetensors bytes", peak / files, 1.05)
                print(f"      {files / 1e6:.1f} MB of safetensors, peak {peak / 1e6:.1f} MB, held {held / 1e6:.1f} MB")
                made = model.generate(ids.to(self.device), min_new_tokens=8, max_new_tokens=8, do_sample=False)
                check(f"{shape} {layout} generate() gives 24 tokens", abs(made.shape[1] - 24), 0)
                self.capture_block(f"{shape} {layout}", model)
                del model
            with timed(f"{shape} {layout} on the CPU"), torch.no_grad():
                want = read(dtype=torch.float32)(ids).logits
            model = read(dtype=torch.float32).to(self.device)
            with torch.no_grad():
                got = model(ids.to(self.device)).logits
            check(f"{shape} {layout} logits against the CPU, median token", median_error(got, want), 4 * KERNEL)
            del model
            if layout == "v7-packed":
                continue  # its weights are those of v7
            dense = self.folder / f"{shape}-{layout}-bf16"
            with timed(f"convert {shape} {layout} to bf16"):
                twofour.convert(artifact, dense, to="bf16", no_verify=True)
            plain = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).to(self.device)
            with torch.no_grad():
                want = plain(ids.to(self.device)).logits
            most = BF16_ROUNDINGS + 4 * KERNEL
            check(f"{shape} {layout} logits against BF16, median token", median_error(got, want), most)
            del plain
            for path in dense.glob("*.safetensors"):
                path.unlink()

    def capture_block(self, name: str, model: Any) -> None:
        block = next(m for m in model.modules() if isinstance(m, StoredBlock))
        shape = block.shape
        x = torch.randn(4, shape.hidden, device=self.device, dtype=torch.bfloat16)
        arguments: tuple[Any, ...] = (x,)
        if shape.experts > 1:
            arguments += (
                torch.arange(8, device=self.device, dtype=torch.int32).reshape(4, 2) % shape.experts,
                torch.rand(4, 2, device=self.device),
            )
        block(*arguments)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = block(*arguments)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        check(f"{name} captured block", relative_error(out, block(*arguments)), 0)

    def forward_of_plugin(self) -> None:
        """The modules behind vLLM's methods: ranks in slices and with some of the experts, and linears."""
        for layout in LAYOUTS:
            artifact = self.artifact("mixtral", layout, layers=1, vocab=4096)
            prefix = twofour.Artifact(artifact).layers[0].name
            tensors = {}
            for file in artifact.glob("*.safetensors"):
                with safe_open(file, "pt") as opened:
                    for name in opened.keys():
                        if name.startswith((f"{prefix}.w13_", f"{prefix}.w2_")):
                            tensors[name[len(prefix) + 1 :]] = opened.get_tensor(name)
            shape = layer_shape(prefix, {name: tuple(t.shape) for name, t in tensors.items()})
            torch.manual_seed(3)
            x, shares = torch.randn(24, shape.hidden), torch.rand(24, 2)
            ids = torch.stack([torch.randperm(shape.experts)[:2] for _ in range(24)]).to(torch.int32)
            want = self.block(shape, tensors, "cpu")(x, ids, shares)
            here = [t.to(self.device) for t in (x, ids, shares)]
            check(
                f"plugin {layout} whole",
                relative_error(self.block(shape, tensors, self.device)(*here), want),
                2 * KERNEL,
            )

            half = shape.intermediate // 2
            part = twofour.LayerShape(prefix, layout, shape.experts, shape.hidden, half, shape.gated)
            total = torch.zeros_like(want, device=self.device)
            for begin in (0, half):
                cut = {
                    n: rank_slice(
                        layout, n, t, shape.hidden, shape.intermediate, shape.gated, begin, begin + half, join
                    )
                    for n, t in tensors.items()
                }
                total += self.block(part, cut, self.device)(*here)
            check(f"plugin {layout} two tensor parallel ranks", relative_error(total, want), 2 * KERNEL)

            part = twofour.LayerShape(prefix, layout, shape.experts // 2, shape.hidden, shape.intermediate, shape.gated)
            total = torch.zeros_like(want, device=self.device)
            for rank in (0, 1):
                mine = list(range(rank, shape.experts, 2))
                some = {n: join([t[e : e + 1] for e in mine], 0) for n, t in tensors.items()}
                places = [mine.index(e) if e in mine else -1 for e in range(shape.experts)]
                total += self.block(part, some, self.device, expert_map=places)(*here)
            check(f"plugin {layout} two expert parallel ranks", relative_error(total, want), 2 * KERNEL)
            self.linears(layout, tensors, shape)

    def linears(self, layout: str, tensors: dict[str, torch.Tensor], shape: twofour.LayerShape) -> None:
        """Expert 1 as two linears."""
        for matrix, n, k in (("w13", 2 * shape.intermediate, shape.hidden), ("w2", shape.hidden, shape.intermediate)):
            for m in (1, 48):
                x = torch.randn(m, k)
                got = {}
                for device in ("cpu", self.device):
                    linear = StoredLinear(twofour.LinearShape(matrix, layout, 1, n, k, matrix == "w13")).to(device)
                    for name, parameter in linear.named_parameters():
                        parameter.data.copy_(tensors[f"{matrix}_{name}"][1:2])
                    got[device] = linear(x.to(device))
                check(f"linear {layout} {matrix} m={m}", relative_error(got[self.device], got["cpu"]), KERNEL)

    @staticmethod
    def block(shape: twofour.LayerShape, tensors: dict[str, torch.Tensor], device: str, **options: Any) -> StoredBlock:
        block = StoredBlock(shape, device=device, **options)
        for name, tensor in tensors.items():
            getattr(block, name).data.copy_(tensor)
        return block


def join(pieces: Any, axis: int) -> torch.Tensor:
    return torch.cat([p.contiguous().view(torch.uint8) for p in pieces], axis).view(pieces[0].dtype)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="checkpoints of megabytes, to try the script")
    parser.add_argument("--shapes", nargs="*", default=["qwen3-moe", "llama"])
    options = parser.parse_args()
    print(f"twofour {twofour.version()}, torch {torch.__version__}")
    if options.device != "cpu":
        if not twofour.has_cuda():
            print("FAIL  expected a library and a device with CUDA, found none")
            return 1
        print(torch.cuda.get_device_name())
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(options.folder or Path(folder), options.device, options.layers, options.small)
        steps = [checks.layer_on_arrays, checks.whole_models, checks.forward_of_plugin]
        steps += [lambda s=s: checks.transformers(s, options.layers) for s in options.shapes]
        for step in steps:
            try:
                with timed("together"):
                    step()
            except Exception as error:  # the next step has nothing to do with it
                print(f"FAIL  {type(error).__name__}: {error}", flush=True)
                failures.append(str(error))
    print(f"{len(failures)} failed" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
