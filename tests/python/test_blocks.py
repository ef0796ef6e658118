"""Blocks and linears as torch modules, whole and in slices of ranks, on the CPU: `.ci/nightly python` runs it."""

from __future__ import annotations

import copy
import unittest
from typing import Any

import torch
from safetensors.torch import load_file
from support import GOLDEN, Scratch
from tiny import make_artifact, make_model
from tiny_names import LAYOUTS

import twofour
from twofour.integrations.fp8_linear import Fp8Linear
from twofour.integrations.slices import rank_slice
from twofour.integrations.stored_block import StoredBlock, layer_shape
from twofour.integrations.stored_linear import StoredLinear


def join(pieces: Any, axis: int) -> torch.Tensor:
    joined = torch.cat([p.view(torch.uint8) for p in pieces], axis)
    return joined.view(pieces[0].dtype)


class Arrays(Scratch):
    def test_a_layer_takes_tensors_and_modules_become_them(self) -> None:
        source = GOLDEN / "modelopt-qwen3" / "src"
        twofour.convert(source, self.folder / "v7", to="v7")
        with twofour.Artifact(self.folder / "v7") as artifact, artifact.load(0) as layer:
            hidden = torch.randn(4, 96)
            ids, weights = (torch.from_numpy(array) for array in artifact.route(0, hidden))
            out = layer(hidden, ids, weights)
            self.assertTrue(torch.equal(layer(hidden.requires_grad_(), ids.long(), weights), out))
            self.assertEqual(layer(hidden.detach().bfloat16(), ids, weights).dtype, torch.bfloat16)
            with self.assertRaisesRegex(ValueError, "ids: expected numbers of int32, found 1099511627776"):
                layer(hidden, torch.full_like(ids.long(), 2**40), weights)
            for kind in (torch.float64, torch.float8_e4m3fn):
                with self.assertRaisesRegex(TypeError, f"hidden: expected float32, .*found {str(kind)[6:]} "):
                    layer(hidden.detach().to(kind), ids, weights)
        with twofour.open(source) as checkpoint:
            module = next(m for m in checkpoint.values() if m.format == "NVFP4")
            self.assertTrue(torch.equal(torch.from_dlpack(module), torch.from_numpy(module.numpy())))


class Slices(Scratch):
    def setUp(self) -> None:
        super().setUp()
        self.source = make_model("qwen3_moe", self.folder)
        torch.manual_seed(1)
        self.x = torch.randn(7, 128)
        self.ids = torch.tensor([[i % 4, (i + 1 + i // 4) % 4] for i in range(7)], dtype=torch.int32)
        self.weights = torch.rand(7, 2)

    def tensors(self, layout: str, prefix: str) -> dict[str, torch.Tensor]:
        if not (self.folder / layout).exists():
            make_artifact(self.source, self.folder / layout, layout)
        found = {
            name[len(prefix) + 1 :]: tensor
            for path in (self.folder / layout).glob("*.safetensors")
            for name, tensor in load_file(path).items()
            if name.startswith((f"{prefix}.w13_", f"{prefix}.w2_"))
        }
        self.assertTrue(found)
        return found

    @staticmethod
    def block(shape: twofour.LayerShape, tensors: dict[str, torch.Tensor], **options: Any) -> StoredBlock:
        block = StoredBlock(shape, **options)
        for name, tensor in tensors.items():
            getattr(block, name).data.copy_(tensor)
        return block

    def test_slices_of_ranks_add_up_to_the_block(self) -> None:
        for layout in LAYOUTS:
            for prefix in ("model.layers.0.mlp.experts", "model.layers.1.mlp"):
                tensors = self.tensors(layout, prefix)
                shape = layer_shape(prefix, {name: tuple(t.shape) for name, t in tensors.items()})
                self.assertEqual((shape.hidden, shape.intermediate, shape.gated), (128, 256, True))
                arguments = (self.x, self.ids, self.weights) if shape.experts > 1 else (self.x,)
                whole = self.block(shape, tensors)(*arguments)
                part = twofour.LayerShape(prefix, layout, shape.experts, 128, 128, True)
                summed = sum(
                    self.block(part, {
                        name: rank_slice(layout, name, tensor, 128, 256, True, begin, begin + 128, join)
                        for name, tensor in tensors.items()
                    })(*arguments)
                    for begin in (0, 128)
                )  # fmt: skip
                torch.testing.assert_close(summed, whole, rtol=2e-5, atol=2e-6)

    def test_ranks_with_some_of_the_experts_add_up_to_the_block(self) -> None:
        for layout in LAYOUTS:
            prefix = "model.layers.0.mlp.experts"
            tensors = self.tensors(layout, prefix)
            shape = layer_shape(prefix, {name: tuple(t.shape) for name, t in tensors.items()})
            whole = self.block(shape, tensors)(self.x, self.ids, self.weights)
            summed = torch.zeros_like(whole)
            for mine in ([0, 2], [1, 3]):
                part = twofour.LayerShape(prefix, layout, 2, 128, 256, True)
                some = {name: join([tensor[e : e + 1] for e in mine], 0) for name, tensor in tensors.items()}
                expert_map = [mine.index(e) if e in mine else -1 for e in range(4)]
                summed += self.block(part, some, expert_map=expert_map)(self.x, self.ids, self.weights)
            torch.testing.assert_close(summed, whole, rtol=2e-5, atol=2e-6)

    def test_two_linears_are_the_dense_block(self) -> None:
        prefix = "model.layers.1.mlp"
        for layout in LAYOUTS:
            tensors = self.tensors(layout, prefix)
            shape = layer_shape(prefix, {name: tuple(t.shape) for name, t in tensors.items()})
            whole = self.block(shape, tensors)(self.x)
            linears = {}
            for matrix, n, k in (("w13", 512, 128), ("w2", 128, 256)):
                linear = StoredLinear(twofour.LinearShape(matrix, layout, 1, n, k, matrix == "w13"))
                for name, parameter in linear.named_parameters():
                    parameter.data.copy_(tensors[f"{matrix}_{name}"])
                linears[matrix] = linear
            gate, up = linears["w13"](self.x).chunk(2, -1)
            out = linears["w2"](torch.nn.functional.silu(gate) * up)
            torch.testing.assert_close(out, whole, rtol=2e-5, atol=2e-6)
            half = linears["w2"](torch.zeros(0, 256, dtype=torch.bfloat16))
            self.assertEqual((half.shape, half.dtype), ((0, 128), torch.bfloat16))

    def test_slices_elsewhere_than_at_multiples_of_128_are_refused(self) -> None:
        tensors = self.tensors("v7", "model.layers.1.mlp")
        for begin, end in ((0, 64), (64, 192), (128, 300), (-128, 0)):
            with self.assertRaises(ValueError):
                rank_slice("v7", "w13_comp", tensors["w13_comp"], 128, 256, True, begin, end, join)

    def test_wrong_hidden_is_refused(self) -> None:
        tensors = self.tensors("v7", "model.layers.1.mlp")
        shape = layer_shape("mlp", {name: tuple(t.shape) for name, t in tensors.items()})
        block = self.block(shape, tensors)
        for wrong in (torch.zeros(2, 64), torch.zeros(2, 128, dtype=torch.float64)):
            with self.assertRaises(twofour.Error):
                block(wrong)
        with self.assertRaisesRegex(twofour.Error, r"expected \[1, 32, 256\], found \[1, 32, 511\]"):
            layer_shape("mlp", {n: (1, 32, 511) if n == "w13_comp" else tuple(t.shape) for n, t in tensors.items()})

    def test_a_copy_is_a_module_of_its_own(self) -> None:
        tensors = self.tensors("v7", "model.layers.1.mlp")
        shape = layer_shape("model.layers.1.mlp", {name: tuple(t.shape) for name, t in tensors.items()})
        block = self.block(shape, tensors)
        want = block(self.x)
        copied = copy.deepcopy(block)
        self.assertEqual((block.key, copied.key), ("model.layers.1.mlp", "model.layers.1.mlp#2"))
        copied.w2_global_scale.data.mul_(2)
        torch.testing.assert_close(copied(self.x), 2 * want)
        torch.testing.assert_close(block(self.x), want)
        del block, copied
        self.assertEqual(self.block(shape, tensors).key, "model.layers.1.mlp")


class Fp8(unittest.TestCase):
    def test_every_kind_of_scale_meets_its_weights(self) -> None:
        torch.manual_seed(4)
        n, k = 1100, 300  # more rows than are decoded at a time, and odd blocks
        weight = torch.randn(n, k).to(torch.float8_e4m3fn)
        x, bias = torch.randn(3, k), torch.randn(n)
        wide = {
            (): lambda s: s,
            (n,): lambda s: s[:, None],
            (n, 1): lambda s: s,
            (9, 3): lambda s: torch.stack([torch.stack([s[i // 128, j // 128] for j in range(k)]) for i in range(n)]),
        }
        for shape, spread in wide.items():
            with self.subTest(shape):
                linear = Fp8Linear("linear", n, k, "weight_scale", shape, torch.float32, bias=True)
                scale = torch.rand(shape) + 0.5
                for name, values in (("weight", weight), ("weight_scale", scale), ("bias", bias)):
                    getattr(linear, name).data.copy_(values)
                want = x.double() @ (weight.double() * spread(scale).double()).T + bias
                torch.testing.assert_close(linear(x).double(), want, rtol=1e-4, atol=1e-4)
        with self.assertRaisesRegex(twofour.Error, r"found \[9, 4\]"):
            Fp8Linear("linear", n, k, "weight_scale", (9, 4), torch.float32, bias=False)


if __name__ == "__main__":
    unittest.main()
