"""What callers get wrong: refused by an exception, where ctypes would drop bits or a process would crash."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
import unittest

import numpy as np
from support import GOLDEN, ROOT, Scratch

import twofour

SOURCE = GOLDEN / "modelopt-qwen3" / "src"


class Arguments(Scratch):
    def test_text_behind_a_nul_is_not_dropped(self) -> None:
        place = f"{SOURCE}\0other"
        for call in (
            lambda: twofour.open(place),
            lambda: twofour.inspect(place),
            lambda: twofour.convert(SOURCE, self.folder / "v7", to="v7\0junk"),
            lambda: twofour.Artifact(place),
            lambda: twofour.Model(place),
            lambda: twofour.layout_parts("v7\0", (1, 16, 16)),
        ):
            with self.assertRaisesRegex(ValueError, "without a NUL"):
                call()
        self.assertEqual(os.listdir(self.folder), [])

    def test_bits_of_a_number_are_not_dropped(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            tensor = next(iter(checkpoint.tensors.values()))
            for offset, count in ((2**64, 4), (2**64 + 4, 4), (0, 2**64 + 4), (0, 2**62)):
                with self.assertRaisesRegex(twofour.Error, f"expected bytes in 0 to {tensor.nbytes}"):
                    tensor.tobytes(offset, count)
            with self.assertRaises(ValueError):
                tensor.tobytes(-1, 4)
        with self.assertRaises(ValueError):
            twofour.layout_parts("v7", (1, 2**64 + 16, 16))
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        artifact = twofour.Artifact(self.folder / "v7")
        with self.assertRaisesRegex(ValueError, r"expert_map\[1\]"):
            artifact.load(0, expert_map=[0, 2**32 + 1, 2, 3])
        artifact.load(0, expert_map=np.arange(4))
        with self.assertRaises(ValueError):
            artifact.load(0).workspace_bytes(2**64 + 1, 1)

    def test_an_index_is_a_whole_number_a_slice_or_dots(self) -> None:
        with twofour.open(SOURCE) as checkpoint:
            module = next(m for name, m in checkpoint.items() if ".experts." in name)
            values = module[()]
            for wrong in (1.5, "1", True, None, [0, 1], (..., ...), (..., 0, 0, 0)):
                with self.assertRaises(IndexError):
                    module[wrong]  # type: ignore[index]
            with self.assertRaises(IndexError) as masked:
                module[values[:, 0] > 0]
            self.assertLess(len(str(masked.exception)), 200)
            self.assertRegex(str(masked.exception), r"found an array of bool \[\d+\]; .*numpy.asarray")
            with self.assertRaisesRegex(IndexError, r"a step of 2; .*numpy.asarray"):
                module[::2]
            with self.assertRaisesRegex(AttributeError, r"^Module has no mean; numpy.asarray\(module\).mean has all"):
                module.mean  # type: ignore[attr-defined]
            with self.assertRaisesRegex(AttributeError, "object has no attribute 'meen'$"):
                module.meen  # type: ignore[attr-defined]
            for index in (
                ..., (..., 3), (3, ...), (..., slice(2, 5), slice(0, 7)), (np.int64(1), slice(None, 2**70)), slice(5, 2),
            ):  # fmt: skip
                np.testing.assert_array_equal(module[index], values[index])
            np.testing.assert_array_equal(np.asarray(module), values)
            self.assertEqual(module.__array__(np.float64).dtype, np.float64)
            with self.assertRaises(ValueError):
                module.__array__(copy=False)

    def test_names_are_in_natural_order(self) -> None:
        twofour.synth(self.folder / "deep", "llama", layers=12, small=True)
        with twofour.open(self.folder / "deep") as checkpoint:
            for names in (checkpoint, checkpoint.tensors):
                layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
                self.assertEqual(layers, sorted(layers))
                self.assertEqual(layers[-1], 11)

    def test_a_path_that_begins_as_an_option_is_a_path(self) -> None:
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        os.symlink(SOURCE, "-s")
        twofour.convert("-s", "--force", to="v7")
        self.assertTrue(twofour.validate(b"--force", source="./-s")["valid"])

    def test_a_link_out_of_the_checkpoint_is_copied_on_demand_only(self) -> None:
        shutil.copytree(SOURCE, self.folder / "src")
        (self.folder / "token").write_text("secret")
        os.symlink(self.folder / "token", self.folder / "src" / "notes.txt")
        with self.assertRaisesRegex(twofour.Error, "notes.txt: expected a file within the checkpoint.*follow_links=True"):
            twofour.convert(self.folder / "src", self.folder / "out", to="v7")
        twofour.convert(self.folder / "src", self.folder / "out", to="v7", follow_links=True)
        self.assertEqual((self.folder / "out" / "notes.txt").read_text(), "secret")

    def test_what_a_url_keeps_secret_is_in_no_message(self) -> None:
        url = "https://user:SECRET@127.0.0.1:1/m.safetensors?X-Amz-Signature=SECRET"
        for act in (
            lambda: twofour.open(url),
            lambda: twofour.Artifact(url),
            lambda: twofour.Model(url),
            lambda: twofour.inspect(url),
            lambda: twofour.convert(url, self.folder / "out", to="v7"),
            lambda: twofour.convert(SOURCE, url, to="v7"),
            lambda: twofour.validate(SOURCE, source=url),
        ):
            with self.assertRaises(twofour.Error) as caught:
                act()
            self.assertNotIn("SECRET", str(caught.exception))

    def test_a_command_without_a_document_is_an_error(self) -> None:
        for words in (("inspect", "--help"), ("--version",)):
            with self.assertRaisesRegex(twofour.Error, "expected a command that gives a document"):
                twofour.command(*words)


class Lives(Scratch):
    def test_what_owns_a_handle_is_not_copied(self) -> None:
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        artifact = twofour.Artifact(self.folder / "v7")
        for owner in (twofour.open(SOURCE), artifact, artifact.load(0)):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "copied or pickled"):
                    make(owner)

    def test_a_checkpoint_closes_behind_its_readers(self) -> None:
        for _ in range(20):
            checkpoint = twofour.open(SOURCE)
            modules, failures = list(checkpoint.values()), []

            def read() -> None:
                try:
                    while True:
                        for module in modules:
                            module[()]
                except ValueError as error:
                    failures.append(str(error))

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            checkpoint.close()
            for thread in threads:
                thread.join()
            self.assertEqual(len(failures), 4)
            self.assertIn("found a closed one", failures[0])
            checkpoint.close()

    def process(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(SOURCE)], capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools" / "python")},
        )  # fmt: skip

    def test_ctrl_c_is_never_lost_in_a_callback(self) -> None:
        code = """
            import signal, sys, threading, time, twofour
            threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGINT)).start()
            try:
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    twofour.lint(sys.argv[1])
            except KeyboardInterrupt:
                print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, twofour.lint(sys.argv[1])["sound"])
        """
        for _ in range(10):
            done = self.process(code)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True True\n", ""))

    def test_a_process_ends_while_other_threads_run_commands(self) -> None:
        code = """
            import sys, threading, time, twofour
            def work():
                while True:
                    try:
                        twofour.lint(sys.argv[1])
                    except twofour.Interrupted:
                        return
            for _ in range(3):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.1)
        """
        for _ in range(5):
            done = self.process(code)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
