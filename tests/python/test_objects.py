"""Checkpoints, artifacts, layers and models as Python's objects: closed, shown, forked, and arrays for others."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import unittest
from typing import Any, Callable
from unittest import mock

import numpy as np
from support import GOLDEN, Scratch

import twofour
from twofour import _arrays

SOURCE = GOLDEN / "modelopt-qwen3" / "src"
LAYER = "model.layers.0.mlp.experts"


class Objects(Scratch):
    def setUp(self) -> None:
        super().setUp()
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        self.artifact = twofour.Artifact(self.folder / "v7")
        self.hidden = np.random.default_rng(0).standard_normal((4, 96), np.float32)
        self.ids, self.weights = self.artifact.route(0, self.hidden)

    def model(self) -> twofour.Model:
        if not (self.folder / "tiny").exists():
            twofour.synth(self.folder / "tiny", "llama", layers=1, small=True)
        return twofour.Model(self.folder / "tiny")

    def linear(self) -> twofour.Linear:
        shape = twofour.LinearShape("linear", "v7", 1, 32, 16)
        parts = twofour.layout_parts("v7", (1, 32, 16))
        # Metadata 0x44 keeps the first two of each quad.
        arrays = {p.suffix: np.full(p.shape, 0x44 if p.suffix == "meta" else 0, np.uint8) for p in parts}
        arrays["global_scale"] = np.ones(1, np.float32)
        return twofour.Linear.over(shape, {n: int(a.ctypes.data) for n, a in arrays.items()}, "cpu", (arrays,))


class Lives(Objects):
    def uses(self) -> list[tuple[Any, Callable[[Any], Any]]]:
        """What holds memory, and a call of each."""
        model = self.model()
        x = np.zeros((1, 32), np.float32)
        return [
            (twofour.open(SOURCE), lambda o: next(iter(o.values()))[0]),
            (twofour.open(SOURCE), lambda o: next(iter(o.tensors.values())).tobytes()),
            (self.artifact, lambda o: o.load(0)),
            (twofour.Artifact(self.folder / "v7"), lambda o: o.route(0, self.hidden)),
            (self.artifact.load(0), lambda o: o(self.hidden, self.ids, self.weights)),
            (self.artifact.load(0), lambda o: o.workspace_bytes(1, 1)),
            (self.linear(), lambda o: o.run(1, "float32", x.ctypes.data, x.ctypes.data, x.ctypes.data)),
            (model.sequence(), lambda o: o.append([1])),
            (model, lambda o: o.logits([1])),
            (self.model(), lambda o: o.sequence()),
        ]

    def test_what_is_closed_or_deleted_twice_is_refused_in_words(self) -> None:
        for end in (lambda o: o.close(), lambda o: o.__del__(), lambda o: o.__exit__(None, None, None)):
            for thing, use in self.uses():
                use(thing)
                self.assertFalse(thing.closed)
                end(thing)
                end(thing)
                thing.__del__()
                self.assertTrue(thing.closed)
                with self.assertRaisesRegex(ValueError, "expected an open [a-z]+, found a closed one") as raised:
                    use(thing)
                self.assertIs(type(raised.exception), twofour.ClosedError)
                self.assertIn(", closed>", repr(thing))
                with self.assertRaises(twofour.ClosedError):
                    with thing:
                        pass
            self.artifact = twofour.Artifact(self.folder / "v7")

    def test_with_closes_and_what_was_loaded_stays(self) -> None:
        for thing, use in self.uses():
            with thing as same:
                self.assertIs(same, thing)
                use(same)
            self.assertTrue(thing.closed)
        with twofour.Artifact(self.folder / "v7") as artifact, artifact.load(0) as layer:
            artifact.close()
            layer(self.hidden, self.ids, self.weights)

    def test_a_model_is_freed_behind_its_sequences_and_their_calls(self) -> None:
        for _ in range(10):
            model, failures = self.model(), []
            sequences = [model.sequence() for _ in range(3)]

            def run(sequence: twofour.Sequence) -> None:
                try:
                    for _ in range(1000):
                        sequence.append([1])
                except twofour.ClosedError:
                    failures.append(1)

            threads = [threading.Thread(target=run, args=(s,)) for s in sequences]
            for thread in threads:
                thread.start()
            model.close()
            for thread in threads:
                thread.join()
            self.assertEqual(len(failures), 3)
            del model, sequences
            gc.collect()

    def test_memory_is_freed_at_once(self) -> None:
        freed = []
        layer = self.artifact.load(0)
        with mock.patch.object(type(layer._library), "unload", lambda _, handle: freed.append(handle), create=True):
            layer.close()
            self.assertEqual(len(freed), 1)
            layer.close()
            del layer
            gc.collect()
        self.assertEqual(len(freed), 1)

    def test_reprs_say_what_it_is(self) -> None:
        model = self.model()
        sequence = model.sequence()
        sequence.append([1, 2])
        with twofour.open(SOURCE) as checkpoint:
            module = checkpoint[f"{LAYER}.0.down_proj"]
            for thing, words in (
                (checkpoint, r"<NVFP4 checkpoint, modelopt: 15 modules, 58 tensors, 62.3 kB in .*src>"),
                (module, rf"<Module {LAYER}.0.down_proj: NVFP4 \[96, 48\], 2.6 kB>"),
                (checkpoint.tensors["model.norm.weight"], r"<Tensor model.norm.weight: BF16 \[96\], 192 B>"),
                (self.artifact, r"<Artifact .*v7: 1 layer in v7, 24.2 kB>"),
                (self.artifact.load(0), rf"<Layer {LAYER}: v7, 4 experts, hidden 96, intermediate 48, gated, 24.2 kB on cpu>"),
                (self.linear(), r"<Linear linear: v7 \[1, 32, 16\] on cpu>"),
                (model, r"<Model .*tiny: 1 layer, hidden 256, vocabulary 1024 on cpu>"),
                (sequence, r"<Sequence of 2 tokens in .*tiny>"),
            ):  # fmt: skip
                self.assertRegex(repr(thing), f"^{words}$")


class Forks(Objects):
    def child(self, act: Callable[[], Any]) -> str:
        """What an act says in the child of a fork."""
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # a hang is a failure
            try:
                text = str(act())
            except twofour.Error as error:
                text = f"{type(error).__name__}: {error}"
            except BaseException:
                text = traceback.format_exc()
            os.write(writes, text.encode())
            os._exit(0)
        os.close(writes)
        with open(reads, "rb") as file:
            text = file.read().decode()
        self.assertEqual(os.waitpid(pid, 0)[1], 0, text)
        return text

    def test_a_child_goes_on_with_what_its_parent_had_on_the_cpu(self) -> None:
        layer, model, checkpoint = self.artifact.load(0), self.model(), twofour.open(SOURCE)
        want, logits = layer(self.hidden, self.ids, self.weights), model.logits([1, 2, 3])
        sequence = model.sequence()
        sequence.append([1, 2])
        for act in (
            lambda: np.array_equal(layer(self.hidden, self.ids, self.weights), want),
            lambda: np.array_equal(model.logits([1, 2, 3]), logits),
            lambda: np.allclose(sequence.append([3]), logits[2], rtol=1e-4, atol=1e-5),
            lambda: next(iter(checkpoint.values()))[0].shape != (),
            lambda: twofour.lint(SOURCE)["sound"],
            lambda: twofour.validate(self.folder / "v7", source=SOURCE)["valid"],
            lambda: (model.close(), layer.close(), checkpoint.close(), model.closed and sequence.closed)[-1],
        ):
            self.assertEqual(self.child(act), "True")
        np.testing.assert_array_equal(layer(self.hidden, self.ids, self.weights), want)
        np.testing.assert_array_equal(model.logits([1, 2, 3]), logits)

    def test_a_fork_during_a_command_is_refused_in_words_and_never_waits(self) -> None:
        runs, ends = threading.Event(), threading.Event()

        def hold(*now: Any) -> None:
            runs.set()
            ends.wait(60)

        thread = threading.Thread(target=lambda: twofour.lint(SOURCE, progress=hold))
        thread.start()
        runs.wait(60)
        for act in (lambda: twofour.lint(SOURCE), lambda: twofour.open(SOURCE), lambda: self.artifact.load(0)):
            self.assertRegex(self.child(act), "^Error: expected a process that was not forked during a call.*spawn")
        ends.set()
        thread.join()
        self.assertEqual(self.child(lambda: twofour.lint(SOURCE)["sound"]), "True")

    def test_what_is_on_cuda_is_refused_in_a_child(self) -> None:
        layer = self.artifact.load(0)
        layer._device = 1  # as on CUDA, which a child cannot use
        said = self.child(lambda: layer(self.hidden, self.ids, self.weights))
        self.assertRegex(said, f"^Error: {LAYER}: expected the process that opened it on CUDA, found a process that fork")


class Arrays(Objects):
    def test_read_only_arrays_are_inputs_and_no_outputs(self) -> None:
        layer = self.artifact.load(0)
        want = layer(self.hidden, self.ids, self.weights)
        np.save(self.folder / "hidden.npy", self.hidden)
        inputs = [np.frombuffer(self.hidden.tobytes(), np.float32).reshape(4, 96),
                  np.load(self.folder / "hidden.npy", mmap_mode="r"), self.hidden.copy()]  # fmt: skip
        inputs[2].flags.writeable = False
        ids, weights = self.ids.copy(), self.weights.copy()
        ids.flags.writeable = weights.flags.writeable = False
        for hidden in inputs:
            np.testing.assert_array_equal(layer(hidden, ids, weights), want)
            np.testing.assert_array_equal(self.artifact.route(0, hidden)[0], self.ids)
            with self.assertRaisesRegex(ValueError, "out: expected an array that may be written, found a read-only one"):
                layer(self.hidden, self.ids, self.weights, out=hidden)
        with self.assertRaisesRegex(ValueError, "hidden: expected a contiguous array"):
            layer(np.broadcast_to(self.hidden[:1], (4, 96)), ids, weights)

        class Old:
            """A NumPy array before 2.1, which knows no versions."""

            def __init__(self, array: np.ndarray) -> None:
                self.array, self.__array_interface__ = array, array.__array_interface__

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

            def __dlpack__(self) -> Any:
                if not self.array.flags.writeable:
                    raise BufferError("Cannot export readonly array since signalling readonly is unsupported by DLPack")
                return self.array.__dlpack__()

        for hidden in (self.hidden, inputs[0]):
            np.testing.assert_array_equal(layer(Old(hidden), ids, Old(weights), out=np.empty_like(want)), want)
        with self.assertRaisesRegex(ValueError, "out: .*found a read-only one"):
            layer(self.hidden, ids, weights, out=Old(inputs[0]))

    def test_ids_may_be_int64_and_float64_is_refused_in_words(self) -> None:
        layer = self.artifact.load(0)
        ids = self.ids.astype(np.int64)
        np.testing.assert_array_equal(
            layer(self.hidden, ids, self.weights), layer(self.hidden, self.ids, self.weights)
        )
        with self.assertRaisesRegex(ValueError, "ids: expected numbers of int32, found 4294967296"):
            layer(self.hidden, np.where(ids == ids[0, 0], 2**32, ids), self.weights)
        for kind, words in ((np.float64, "float64"), (np.uint8, "uint8"), (np.complex64, "complex64")):
            with self.assertRaisesRegex(TypeError, f"hidden: expected float32, .*found {words}.*convert it to float32"):
                layer(self.hidden.astype(kind), self.ids, self.weights)
            with self.assertRaisesRegex(TypeError, f"hidden: expected float32 .*found {words}"):
                self.artifact.route(0, self.hidden.astype(kind))
        with self.assertRaisesRegex(TypeError, "ids: expected int32 or int64 .*found uint64"):
            layer(self.hidden, self.ids.astype(np.uint64), self.weights)

    def test_ids_on_cuda_are_clamped_without_a_look_at_them(self) -> None:
        found = _arrays.Array(0, (2,), "int64", 0)
        narrow = _arrays.as_int32("ids", np.array([2**40, -(2**40)]), found)
        self.assertEqual((narrow.dtype, narrow.tolist()), (np.int32, [2**31 - 1, -(2**31)]))

    def test_modules_are_arrays(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            for thing in (checkpoint[f"{LAYER}.0.down_proj"], checkpoint.tensors["model.norm.weight"]):
                values = thing.numpy()
                self.assertEqual((thing.shape, thing.ndim, thing.size, len(thing)),
                                 (values.shape, values.ndim, values.size, len(values)))  # fmt: skip
                for same in (np.asarray(thing), np.from_dlpack(thing), np.stack(list(thing)), thing[...], thing[()]):
                    np.testing.assert_array_equal(same, values)
                self.assertEqual(np.asarray(thing, dtype=np.float64).dtype, np.float64)
                last = thing[(-1,) * thing.ndim]
                self.assertIs(type(last), np.float32)
                self.assertEqual(last, values[(-1,) * thing.ndim])
            module = checkpoint[f"{LAYER}.0.down_proj"]
            self.assertEqual((module.dtype, module.numpy().dtype), (np.float32, np.float32))
            np.testing.assert_array_equal(np.matmul(module, np.eye(48, dtype=np.float32)), module.numpy())
            for wrong in (96, -97, 99999):
                with self.assertRaisesRegex(IndexError, f"expected -96 to 95, found {wrong}$"):
                    module[wrong]
            with self.assertRaises(BufferError):
                module.__dlpack__(copy=False)

    def test_a_wrong_name_is_answered_with_the_nearest(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            for act, words in (
                (lambda: checkpoint[f"{LAYER}.0.down_prj"], rf"did you mean {LAYER}\.0\.down_proj\?"),
                (lambda: checkpoint["model.norm.weight"], r"found that of a tensor; see tensors\['model.norm.weight'\]"),
                (lambda: checkpoint.tensors["model.norm.weigt"], r"did you mean model\.norm\.weight\?"),
                (lambda: checkpoint["zz"], "^zz: expected the name of a module$"),
            ):
                with self.assertRaisesRegex(KeyError, words) as raised:
                    act()
                self.assertIsInstance(raised.exception, twofour.Error)
            self.assertFalse("zz" in checkpoint or "zz" in checkpoint.tensors)
            self.assertIsNone(checkpoint.get("zz"))

    def test_odd_calls_get_an_answer_in_words(self) -> None:
        model = self.model()
        for act, words in (
            (lambda: self.artifact.route(0, self.hidden, top_k=0), f"top_k: expected 1 to the 4 experts of {LAYER}, found 0"),
            (lambda: self.artifact.route(0, self.hidden, top_k=2**32 + 2), "top_k: expected 1 to the 4 experts .* 4294967298"),
            (lambda: self.artifact.route(0, self.hidden, top_k=-1), "top_k: expected 1 to the 4 experts"),
            (lambda: self.artifact.load(-1), f"-1: expected the name of one layer or its number, found none .*{LAYER}"),
            (lambda: twofour.layout_parts("v7", (-1, 16, 16)), r"expected E from 0, .*found \[-1, 16, 16\]"),
            (lambda: model.logits([]), "tokens: expected at least one, found none"),
            (lambda: model.generate([], 1), "tokens: expected at least one, found none"),
            (lambda: model.logits([0.5]), r"tokens: expected integers \[T\], found float64 \[1\]"),
            (lambda: model.generate([1], -1), "count: expected 0 tokens or more, found -1"),
        ):
            with self.assertRaisesRegex(ValueError, words) as raised:
                act()
            self.assertIsInstance(raised.exception, twofour.Error)
        with self.assertRaisesRegex(TypeError, "layer: expected a name or a number, found NoneType"):
            self.artifact.load(None)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(unittest.main())
