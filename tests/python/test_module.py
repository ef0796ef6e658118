"""`import twofour`: commands, checkpoints, and what the module promises of itself."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from support import GOLDEN, PROGRAM, ROOT, Scratch, run, stored, without_times

import twofour
from twofour import _library
from twofour._words import python_words

SOURCE = GOLDEN / "modelopt-qwen3" / "src"


class Commands(Scratch):
    def test_a_document_is_what_the_program_prints(self) -> None:
        for words, found in (
            (["inspect", str(SOURCE), "--stats"], twofour.inspect(SOURCE, stats=True)),
            (["lint", str(SOURCE)], twofour.lint(SOURCE, select=None, headers_only=False)),
            (["diff", str(SOURCE), str(SOURCE)], twofour.diff(SOURCE, SOURCE)),
            (["lint", str(SOURCE), "--select", "no-tokenizer,index-*"],
             twofour.lint(SOURCE, select=["no-tokenizer", "index-*"])),
            (["recipes"], twofour.command("recipes")),
        ):  # fmt: skip
            printed = json.loads(run(*words, "--json").stdout)
            self.assertEqual(without_times(found), without_times(printed))

    def test_an_error_has_the_programs_message_in_pythons_words(self) -> None:
        for words, call in (
            (["lint", "no/such/path"], lambda: twofour.lint("no/such/path")),
            (["convert", str(SOURCE), str(self.folder / "x"), "--to", "v8"],
             lambda: twofour.convert(SOURCE, self.folder / "x", to="v8")),
            (["diff", str(SOURCE), str(SOURCE), "--tolerance", "much"],
             lambda: twofour.diff(SOURCE, SOURCE, tolerance="much")),
            (["stats", "inspect", "no/such"], lambda: twofour.stats("inspect", "no/such")),
            (["inspect", str(SOURCE), "--tensor", "nothing"], lambda: twofour.inspect(SOURCE, tensor="nothing")),
        ):  # fmt: skip
            with self.assertRaises(twofour.Error) as raised:
                call()
            message = json.loads(run(*words, "--json").stdout)["error"]
            self.assertEqual(str(raised.exception), python_words(message, words[0]))

    def test_what_is_no_command_for_a_process_is_refused(self) -> None:
        for words in (["run", "x"], ["lint", str(SOURCE), "--device=cuda:1"]):
            with self.assertRaises(twofour.Error):
                twofour.command(words[0], words[1], **({"device": "cuda:1"} if len(words) > 2 else {}))

    def test_an_artifact_has_the_golden_bytes_and_is_valid(self) -> None:
        for layout, golden in (("v7", "v7"), ("v7-packed", "v7_packed"), ("g8", "g8")):
            artifact = self.folder / layout
            made = twofour.convert(SOURCE, artifact, to=layout)
            self.assertEqual(made["layout"], layout)
            files = {name: tensor for path in artifact.glob("*.safetensors") for name, tensor in stored(path).items()}
            for name, tensor in stored(GOLDEN / "modelopt-qwen3" / "expect" / f"{golden}.safetensors").items():
                self.assertEqual(files[name], tensor, name)
            self.assertTrue(twofour.validate(artifact, source=SOURCE)["valid"])

    def test_findings_are_data_and_no_error(self) -> None:
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        result = twofour.diff(SOURCE, self.folder / "v7")
        self.assertGreater(result["failed"], 0)


class Progress(Scratch):
    """A checkpoint that takes long enough to be seen and stopped."""

    def setUp(self) -> None:
        super().setUp()
        self.source = self.folder / "source"
        twofour.command("synth", self.source, shape="qwen3-next", layers=1, experts=64)

    def test_a_callback_sees_all_bytes_on_the_calling_thread(self) -> None:
        seen: list[tuple[str, int, int]] = []
        threads = set()

        def see(phase: str, done: int, total: int) -> None:
            seen.append((phase, done, total))
            threads.add(threading.get_ident())

        twofour.convert(self.source, self.folder / "v7", to="v7", progress=see)
        self.assertEqual(threads, {threading.get_ident()})
        self.assertTrue(any(0 < done <= total for _, done, total in seen))
        self.assertEqual(sorted(done for _, done, _ in seen if done), [done for _, done, _ in seen if done])

    def test_true_stops_it_and_the_directory_is_known_as_unfinished_or_gone(self) -> None:
        with self.assertRaises(twofour.Interrupted):
            twofour.convert(self.source, self.folder / "none", to="v7", progress=lambda *_: True)
        self.assertFalse((self.folder / "none").exists())
        try:
            twofour.convert(self.source, self.folder / "v7", to="v7", progress=lambda _, done, total: 0 < done < total)
        except twofour.Interrupted:
            self.assertFalse((self.folder / "v7" / "twofour.json").exists())
            made = twofour.convert(self.source, self.folder / "v7", to="v7", resume=(self.folder / "v7").exists())
            self.assertGreater(made["bytes_written"], 0)
        else:
            self.skipTest("the conversion ended before it was stopped")

    def test_a_callback_calls_no_command(self) -> None:
        with self.assertRaisesRegex(twofour.Error, "expected one command at a time"):
            twofour.lint(SOURCE, progress=lambda *_: bool(twofour.lint(SOURCE)))

    def test_an_exception_of_the_callback_comes_out(self) -> None:
        def stop(phase: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            twofour.convert(self.source, self.folder / "v7", to="v7", progress=stop)
        self.assertTrue(twofour.lint(SOURCE)["sound"])  # the request to stop is taken back

    def test_ctrl_c_stops_it(self) -> None:
        code = (
            "import sys, time, twofour\n"
            "watch = lambda *seen: print(flush=True) or time.sleep(60)\n"
            "twofour.convert(sys.argv[1], sys.argv[2], to='v7', progress=watch)"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(self.source), str(self.folder / "v7")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment(),
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(2)
        _, errors = child.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertFalse((self.folder / "v7" / "twofour.json").exists())

    def test_ctrl_c_stops_a_command_without_a_callback(self) -> None:
        code = (
            "import os, signal, sys, threading, twofour\n"
            "threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
            "twofour.convert(sys.argv[1], sys.argv[2], to='v7')"
        )
        child = subprocess.run(
            [sys.executable, "-c", code, str(self.source), str(self.folder / "v7")],
            capture_output=True, text=True, env=self.environment(), timeout=60,
        )  # fmt: skip
        self.assertIn("KeyboardInterrupt", child.stderr)
        self.assertFalse((self.folder / "v7" / "twofour.json").exists())

    def test_other_threads_go_on_meanwhile(self) -> None:
        done = threading.Event()

        def work() -> None:
            twofour.convert(self.source, self.folder / "v7", to="v7")
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        turns = 0
        while not done.is_set():
            turns += 1
            time.sleep(0.001)
        thread.join()
        self.assertGreater(turns, 5)

    @staticmethod
    def environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "python")}


class Checkpoints(Scratch):
    def test_values_of_every_module_are_the_golden_ones(self) -> None:
        for golden in ("modelopt-qwen3",):
            dense = stored(GOLDEN / golden / "expect" / "dense.safetensors")
            with twofour.open(GOLDEN / golden / "src") as checkpoint:
                seen = 0
                for name, module in checkpoint.items():
                    if ".experts." not in name:
                        continue
                    block, expert, projection = name.rsplit(".", 2)
                    matrix = "w2" if projection == "down_proj" else "w13"
                    _, shape, data = dense[f"{block}.{matrix}.dense"]
                    want = np.frombuffer(data, "<f4").reshape(shape)[int(expert)]
                    half = module.shape[0]
                    want = {"gate_proj": want[:half], "up_proj": want[half:], "down_proj": want}[projection]
                    np.testing.assert_array_equal(module[()], want)
                    np.testing.assert_array_equal(module[3:5, -7:], want[3:5, -7:])
                    np.testing.assert_array_equal(module[-1], want[-1])
                    seen += 1
                self.assertGreater(seen, 0)

    def test_an_artifact_has_its_sources_modules_and_its_own_bytes(self) -> None:
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        pruned = twofour.prune(SOURCE, self.folder / "pruned", pattern="2:4")
        self.assertGreater(len(pruned["modules"]), 0)
        files = {n: t for path in (self.folder / "v7").glob("*.safetensors") for n, t in stored(path).items()}
        with twofour.open(self.folder / "v7") as artifact, twofour.open(self.folder / "pruned") as same:
            self.assertEqual(list(artifact), list(same))
            for name in same:
                np.testing.assert_array_equal(artifact[name][()], same[name][()])
            self.assertEqual(set(artifact.tensors), set(files))
            for name, tensor in artifact.tensors.items():
                dtype, shape, data = files[name]
                self.assertEqual((tensor.dtype, list(tensor.shape), tensor.nbytes), (dtype, shape, len(data)))
                self.assertEqual(tensor.tobytes(), data)
                self.assertEqual(tensor.tobytes(1, 2) if len(data) > 3 else b"", data[1:3] if len(data) > 3 else b"")

    def test_a_tensor_comes_in_its_own_type(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            for tensor in checkpoint.tensors.values():
                values = tensor.numpy()
                self.assertEqual(values.shape, tensor.shape)
                if tensor.dtype == "U8":
                    self.assertEqual((values.dtype, values.tobytes()), (np.uint8, tensor.tobytes()))
                if tensor.dtype == "BF16":
                    bits = np.frombuffer(tensor.tobytes(), "<u2").astype("<u4") << 16
                    np.testing.assert_array_equal(values.ravel(), bits.view("<f4"))

    def test_a_module_that_is_refused_says_why(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            name = next(iter(checkpoint))
        source = self.folder / "rotated"
        shutil.copytree(SOURCE, source)
        config = json.loads((source / "config.json").read_text())
        config.setdefault("quantization_config", {})["rotation_config"] = {"algorithm": "hadamard"}
        (source / "config.json").write_text(json.dumps(config))
        with twofour.open(source) as checkpoint:
            self.assertNotIn(name, checkpoint)
            self.assertIsNone(checkpoint.get(name))
            with self.assertRaisesRegex(KeyError, "rotation_config: expected none"):
                checkpoint[name]
            with self.assertRaises(KeyError):
                checkpoint["no.such"]

    def test_wrong_places_are_refused(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            module = next(iter(checkpoint.values()))
            tensor = next(iter(checkpoint.tensors.values()))
            with self.assertRaises(IndexError):
                module[module.shape[0]]
            with self.assertRaises(IndexError):
                module[::2]
            with self.assertRaises(twofour.Error):
                tensor.tobytes(tensor.nbytes, 1)
            with self.assertRaises(KeyError):
                checkpoint["no.such.module"]
        with self.assertRaises(ValueError):
            module[0]
        with self.assertRaises(twofour.Error):
            twofour.open(self.folder / "nothing")


class Promises(unittest.TestCase):
    def test_everything_public_has_a_docstring(self) -> None:
        for name in twofour.__all__:
            thing = getattr(twofour, name)
            if not callable(thing):
                continue
            self.assertTrue(inspect.getdoc(thing), name)
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_") and inspect.isfunction(value):
                        self.assertTrue(value.__doc__, f"{name}.{member}")

    def test_numpy_is_imported_where_arrays_are_asked_for_alone(self) -> None:
        code = (
            "import sys, twofour\n"
            f"twofour.lint({str(SOURCE)!r}), twofour.open({str(SOURCE)!r}).tensors\n"
            "sys.exit('numpy' in sys.modules)"
        )
        child = subprocess.run([sys.executable, "-c", code], env=Progress.environment(), check=False)
        self.assertEqual(child.returncode, 0)

    def test_the_library_is_of_the_modules_version(self) -> None:
        self.assertTrue(twofour.version().startswith(twofour.__version__ + " ("))
        self.assertIn(
            twofour.__version__, subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
        )

    def test_the_library_of_twofour_cuda_is_taken_where_it_is_installed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for package in ("twofour_cuda", "own"):
                (Path(folder) / package / "lib").mkdir(parents=True)
                (Path(folder) / package / "__init__.py").touch()
                (Path(folder) / package / "lib" / "libtwofour.so").touch()
            path = Path(folder) / "twofour_cuda" / "lib" / "libtwofour.so"
            own = str(Path(folder) / "own")
            code = f"import twofour; twofour.__path__.append({own!r}); print(twofour._library._find())"
            environment = {name: value for name, value in Progress.environment().items() if name != "TWOFOUR_LIBRARY"}
            environment["PYTHONPATH"] = os.pathsep.join([folder, environment["PYTHONPATH"]])
            child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            self.assertEqual(child.stdout.strip(), str(path), child.stderr)

    def test_a_library_that_is_older_than_the_module_is_refused(self) -> None:
        path = _library.library().path
        with mock.patch.object(_library, "ABI", 1000):
            with self.assertRaisesRegex(twofour.Error, "expected a library of ABI 1000 or later, found [0-9]+"):
                _library.Library(path)

    def test_options_and_documents_are_those_of_the_program(self) -> None:
        script = ROOT / "tools" / "python" / "make_types.py"
        self.assertEqual(subprocess.run([sys.executable, str(script), "--check"], check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
