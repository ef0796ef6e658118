"""Layers and whole models on NumPy's arrays, on the CPU."""

from __future__ import annotations

import unittest
from pathlib import Path

import numpy as np
from support import GOLDEN, Scratch, stored

import twofour

SOURCE = GOLDEN / "modelopt-qwen3" / "src"
LAYOUTS = ("v7", "v7-packed", "g8")


def array(tensor: tuple[str, list[int], bytes]) -> np.ndarray:
    types = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "U8": "u1", "F8_E4M3": "u1"}
    return np.frombuffer(bytearray(tensor[2]), types[tensor[0]]).reshape(tensor[1])


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


class Layers(Scratch):
    def setUp(self) -> None:
        super().setUp()
        moe = stored(GOLDEN / "modelopt-qwen3" / "expect" / "moe.safetensors")
        self.golden = {name.rsplit(".", 1)[1]: array(tensor) for name, tensor in moe.items()}
        self.x = tuple(self.golden[name] for name in ("hidden", "topk_ids", "topk_weights"))

    def artifact(self, layout: str) -> Path:
        if not (self.folder / layout).exists():
            twofour.convert(SOURCE, self.folder / layout, to=layout)
        return self.folder / layout

    def test_every_layout_gives_the_golden_output(self) -> None:
        for layout in LAYOUTS:
            artifact = twofour.Artifact(self.artifact(layout))
            shape = artifact.layers[artifact.find("0")]
            self.assertEqual((shape.layout, shape.experts, shape.hidden, shape.intermediate), (layout, 4, 96, 48))
            layer = artifact.load(0)
            want = self.golden["out_dense" if layout == "g8" else "out_pruned"]
            self.assertLess(relative_error(layer(*self.x), want), 2e-6)
            half = layer(self.x[0].astype(np.float16), *self.x[1:])
            self.assertEqual(half.dtype, np.float16)
            self.assertLess(relative_error(half, want), 4 * 2**-11)

    def test_it_writes_where_it_is_told_and_copies_nothing(self) -> None:
        layer = twofour.Artifact(self.artifact("v7")).load(0)
        out = np.full_like(self.x[0], np.nan)
        self.assertIs(layer(*self.x, out=out), out)
        np.testing.assert_array_equal(out, layer(*self.x))
        self.assertEqual(layer(self.x[0][:0], self.x[1][:0], self.x[2][:0]).shape, (0, 96))

    def test_an_expert_map_leaves_out_what_is_elsewhere(self) -> None:
        artifact = twofour.Artifact(self.artifact("v7"))
        whole = artifact.load(0)(*self.x)
        parts = [artifact.load(0, expert_map=[e if e % 2 == rank else -1 for e in range(4)]) for rank in (0, 1)]
        self.assertLess(relative_error(sum(part(*self.x) for part in parts), whole), 1e-6)

    def test_weights_in_memory_give_the_same_floats(self) -> None:
        for layout in LAYOUTS:
            artifact = twofour.Artifact(self.artifact(layout))
            shape = artifact.layers[0]
            tensors = {
                name[len(shape.name) + 1 :]: array(tensor)
                for path in self.artifact(layout).glob("*.safetensors")
                for name, tensor in stored(path).items()
                if name.startswith(shape.name + ".w")
            }
            for matrix, n, k, gated in (("w13", 96, 96, True), ("w2", 96, 48, False)):
                for part in twofour.layout_parts(layout, (4, n, k), gated):
                    self.assertEqual(tensors[f"{matrix}_{part.suffix}"].shape, part.shape)
            pointers = {name: int(values.ctypes.data) for name, values in tensors.items()}
            layer = twofour.Layer.over(shape, pointers, "cpu", keep=tuple(tensors.values()))
            np.testing.assert_array_equal(layer(*self.x), artifact.load(0)(*self.x))
            scales = tensors["w13_packed"][..., 3 * 96 :] if layout == "v7-packed" else tensors["w13_scale"]
            scales[0, 0, 0] = 0x7F
            with self.assertRaisesRegex(twofour.Error, "expected a block scale that is neither NaN nor negative"):
                twofour.Layer.over(shape, pointers, "cpu")

    def test_a_matrix_gives_the_products_of_its_values(self) -> None:
        dense = stored(GOLDEN / "modelopt-qwen3" / "expect" / "dense.safetensors")
        ids = np.array([0, 3, 1, 0, 2], np.int32)
        for layout in LAYOUTS:
            name = twofour.Artifact(self.artifact(layout)).layers[0].name
            for matrix, n, k in (("w13", 96, 96), ("w2", 96, 48)):
                tensors = {
                    key[len(name) + len(matrix) + 2 :]: array(tensor)
                    for path in self.artifact(layout).glob("*.safetensors")
                    for key, tensor in stored(path).items()
                    if key.startswith(f"{name}.{matrix}_")
                }
                shape = twofour.LinearShape(f"{name}.{matrix}", layout, 4, n, k, matrix == "w13")
                pointers = {key: int(values.ctypes.data) for key, values in tensors.items()}
                linear = twofour.Linear.over(shape, pointers, "cpu", tuple(tensors.values()))
                values = array(dense[f"{name}.{matrix}.{'dense' if layout == 'g8' else 'pruned'}"])
                x, out = np.ascontiguousarray(self.x[0][:, :k]), np.empty((5, n), np.float32)
                self.assertEqual(linear.workspace_bytes(5), 0)
                linear.run(5, "float32", x.ctypes.data, ids.ctypes.data, out.ctypes.data)
                want = np.einsum("rnk,rk->rn", values[ids].astype(np.float64), x)
                self.assertLess(relative_error(out, want), 2e-6)

    def test_a_matrix_may_be_as_checkpoints_store_it(self) -> None:
        name = "model.layers.0.mlp.experts.2.down_proj"
        with twofour.open(SOURCE) as checkpoint:
            values, n, k = checkpoint[name][()], *checkpoint[name].shape
            suffixes = {"weight": "weight", "scale": "weight_scale", "global_scale": "weight_scale_2"}
            tensors = {
                key: np.frombuffer(bytearray(checkpoint.tensors[f"{name}.{suffix}"].tobytes()), np.uint8)
                for key, suffix in suffixes.items()
            }
        pointers = {key: int(data.ctypes.data) for key, data in tensors.items()}
        linear = twofour.Linear.over(twofour.LinearShape(name, "nvfp4", 1, n, k), pointers, "cpu")
        x, ids = np.ascontiguousarray(self.x[0][:, :k]), np.zeros(5, np.int32)
        out = np.empty((5, n), np.float32)
        linear.run(5, "float32", x.ctypes.data, ids.ctypes.data, out.ctypes.data)
        self.assertLess(relative_error(out, x.astype(np.float64) @ values.T.astype(np.float64)), 2e-6)
        with self.assertRaises(twofour.Error):  # of a whole layer no kernel reads it
            shape = twofour.LayerShape("mlp", "nvfp4", 1, 96, 48, True)
            twofour.Layer.over(shape, {f"{m}_{key}": at for m in ("w13", "w2") for key, at in pointers.items()}, "cpu")

    def test_wrong_arrays_are_refused(self) -> None:
        layer = twofour.Artifact(self.artifact("v7")).load(0)
        hidden, ids, weights = self.x
        for wrong in (
            (hidden[:, :-1], ids, weights), (hidden.astype(np.float64), ids, weights), (hidden, ids[:-1], weights),
            (hidden, ids.astype(np.uint64), weights), (hidden, ids, weights.astype(np.float16)),
            (np.asfortranarray(hidden), ids, weights), (hidden, ids[0], weights), (hidden.tolist(), ids, weights),
        ):  # fmt: skip
            with self.assertRaises((TypeError, ValueError)):
                layer(*wrong)
        for out in (hidden.astype(np.float16), hidden[:-1].copy(), np.asfortranarray(hidden)):
            with self.assertRaises((TypeError, ValueError)):
                layer(hidden, ids, weights, out=out)
        with self.assertRaises(twofour.Error):
            layer(hidden, ids + 4, weights)
        with self.assertRaises(ValueError):
            twofour.Artifact(self.artifact("v7")).load(0, "gpu")

    def test_the_router_gives_sorted_shares(self) -> None:
        ids, weights = twofour.Artifact(self.artifact("v7")).route(0, self.x[0])
        self.assertEqual((ids.shape, ids.dtype, weights.dtype), ((5, 2), np.int32, np.float32))
        self.assertTrue((weights[:, 0] >= weights[:, 1]).all())


class Models(Scratch):
    def setUp(self) -> None:
        super().setUp()
        twofour.command("synth", self.folder / "tiny", shape="llama", layers=1, small=True)
        self.model = twofour.Model(self.folder / "tiny")

    def test_logits_come_at_once_or_one_by_one_and_generate_takes_the_largest(self) -> None:
        model = self.model
        tokens = [1, 5, 9, 2, 7]
        whole = model.logits(np.array(tokens))
        self.assertEqual(whole.shape, (5, model.vocabulary))
        sequence = model.sequence()
        for token, want in zip(tokens, whole):
            np.testing.assert_allclose(sequence.append([token]), want, rtol=1e-4, atol=1e-5)
        self.assertEqual(sequence.size, 5)
        tokens = [2, 7, 1, 8]
        made = model.generate(tokens, 4)
        self.assertEqual(len(set(made)), 4)  # so that one in the place of another shows
        for i, token in enumerate(made):
            self.assertEqual(token, int(model.logits(tokens + made[:i])[-1].argmax()))

    def test_a_model_is_on_the_device_that_is_named(self) -> None:
        want = self.model.logits([1, 2, 3])
        np.testing.assert_array_equal(twofour.Model(self.folder / "tiny", device="cpu").logits([1, 2, 3]), want)
        for device in ("rocm", "cuda:one", "cuda:-1", "cuda:\u00b2", -1):
            with self.assertRaisesRegex(ValueError, "expected cpu, cuda or cuda:N, found (rocm|cuda:.)"):
                twofour.Model(self.folder / "tiny", device=device)
        with self.assertRaisesRegex(twofour.Error, "expected a CUDA device( from 0 to [0-9]+)?, found"):
            twofour.Model(self.folder / "tiny", device="cuda:999")

    def test_compress_takes_a_file_of_tokens_and_gives_what_convert_does(self) -> None:
        np.save(self.folder / "tokens.npy", np.arange(32, dtype="<i4").reshape(2, 16) % self.model.vocabulary)
        made = twofour.compress(
            self.folder / "tiny", self.folder / "v7", to="v7", tokens=self.folder / "tokens.npy", context=16
        )
        self.assertEqual((made["layout"], made["was_complete"]), ("v7", False))
        self.assertTrue(twofour.validate(self.folder / "v7", source=self.folder / "tiny")["valid"])
        with self.assertRaisesRegex(twofour.Error, "budget: expected budget_stats beside it, found none"):
            twofour.compress(self.folder / "tiny", self.folder / "x", to="v7", tokens="none.npy", budget=0.5)

    def test_tokens_are_integers_of_any_kind(self) -> None:
        model = self.model
        want = model.logits([1, 2, 3])
        readonly = np.frombuffer(np.array([1, 2, 3], "<i4").tobytes(), "<i4")
        for tokens in (
            (1, 2, 3), np.array([1, 2, 3], np.uint8), readonly, np.array([1, 2, 3], ">i8"), np.arange(1, 6, 1)[:3],
            np.array([1, 0, 2, 0, 3])[::2],
        ):  # fmt: skip
            np.testing.assert_array_equal(model.logits(tokens), want)
        for wrong in ([], [1.5], [True], "abc", [[1]], None, [-1], [2**40]):
            with self.assertRaises(ValueError):
                model.logits(wrong)
        self.assertEqual(model.generate([1], 0), [])
        with self.assertRaises(ValueError):
            model.generate([1], -1)
        with self.assertRaises(TypeError):
            model.generate([1], 1.5)  # type: ignore[arg-type]
        # A token that is refused leaves the sequence as it was.
        sequence, same = model.sequence(), model.sequence()
        for each in (sequence, same):
            each.append([1, 2, 3])
        with self.assertRaises(twofour.Error):
            sequence.append([10**6])
        np.testing.assert_array_equal(sequence.append([4]), same.append([4]))

    def test_wrong_tokens_are_refused(self) -> None:
        for wrong in ([self.model.vocabulary], []):
            with self.assertRaises(twofour.Error):
                self.model.logits(np.array(wrong, np.int64))
        for odd in ([0.5], [[1]], [-1]):
            with self.assertRaises(ValueError):
                self.model.logits(odd)


if __name__ == "__main__":
    unittest.main()
