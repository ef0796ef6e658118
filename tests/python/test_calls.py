"""Commands as functions: what help() shows of them, what they return, and how they fail."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import keyword
import json
import os
import pickle
import pydoc
import re
import shutil
import sys
import types
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

import numpy as np
from support import GOLDEN, ROOT, Scratch, run, without_times

import twofour

SOURCE = GOLDEN / "modelopt-qwen3" / "src"
#: A small tokenizer.json that the library's tests have.
BYTES = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
         "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
         "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
         "added_tokens": [{"id": 258, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
                           "normalized": False, "special": True}]}  # fmt: skip


def byte_characters() -> list[str]:
    """GPT-2's character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(odd)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens 0 to 255, "ab" as 256, "abc" as 257, a special <end> as 258."""
    words = [*byte_characters(), "ab", "abc"]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {word: i for i, word in enumerate(words)}, "merges": [["a", "b"], ["ab", "c"]]}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps({**BYTES, "model": model}))


class Help(unittest.TestCase):
    def functions(self) -> list[str]:
        return list(twofour._functions.__all__)

    def test_each_option_of_the_program_is_in_signature_and_docstring_with_values_and_default(self) -> None:
        seen = 0
        for name in self.functions():
            function, whole = getattr(twofour, name), run(name, "--help-all")
            page = whole.stdout if whole.returncode == 0 else run("help", name).stdout
            names = [word.replace("-", "_") for word in re.findall(r"^  (?:-\w,)?--([\w-]+)", page, flags=re.M)]
            names = [word + "_" if keyword.iskeyword(word) else word for word in names]
            parameters, shown = inspect.signature(function).parameters, pydoc.render_doc(function, renderer=pydoc.plaintext)
            for option in set(names) - {"help", "help_all", "json", "quiet", "verbose", "sarif"}:
                self.assertIn(option, parameters, name)
                self.assertRegex(shown, rf"\n +{option} \(\S", name)
                seen += 1
            for choices in re.findall(r"--[\w-]+ \{([^}]+)\}", page):
                for choice in re.sub(r"\s", "", choices).split(","):
                    self.assertIn(f'"{choice}"', shown, name)
            for default in re.findall(r"\(default: ([\w.:+-]+)\)", page):
                self.assertIn(f"default: {default})", " ".join(shown.split()), name)
            for part in ("Args:", "Returns:", "Raises:", "Example: twofour."):
                self.assertTrue(part in shown or (part == "Returns:" and name == "stats"), f"{name} {part}")
            self.assertNotIn("--help", shown)
        self.assertGreater(seen, 250)

    def test_help_of_each_public_name_names_arguments_and_errors(self) -> None:
        def check(name: str, function: Any, doc: str) -> None:
            for parameter in list(inspect.signature(function).parameters.values()):
                if parameter.name not in ("self", "cls"):
                    self.assertRegex(doc, rf"\b{parameter.name}\b", name)
            self.assertRegex(doc, "Raises?|raises", name)

        for name in twofour.__all__:
            thing = getattr(twofour, name)
            if inspect.isfunction(thing):
                check(name, thing, inspect.getdoc(thing) or "")
            if not inspect.isclass(thing) or issubclass(thing, Exception) or name in ("LayerShape", "LinearShape", "StoredPart"):
                continue
            if name not in ("Checkpoint", "Layer", "Linear", "Sequence"):  # others make these
                self.assertRegex(inspect.getdoc(thing) or "", "Raises", name)
            for member, value in inspect.getmembers(thing):
                function = getattr(value, "__func__", value)
                mine = inspect.isfunction(function) and function.__module__.startswith("twofour")
                if mine and (not member.startswith("_") or member == "__call__"):
                    if member not in ("keys", "items", "values", "get"):
                        check(f"{name}.{member}", function, inspect.getdoc(value) or "")

    def test_help_of_each_record_names_its_fields(self) -> None:
        for name in ("LayerShape", "LinearShape", "Matrix", "Module", "StoredPart", "Tensor"):
            for field in dataclasses.fields(getattr(twofour, name)):
                if not field.name.startswith("_"):
                    self.assertRegex(inspect.getdoc(getattr(twofour, name)) or "", rf"\n +{field.name}: ", name)
        for name, kind in vars(twofour.documents).items():
            if isinstance(kind, type(twofour.documents.Lint)) and name not in ("TypedDict", "MovedPair"):
                for key in kind.__annotations__:
                    self.assertRegex(inspect.getdoc(kind) or "", rf"\n +{key}(:|\n|$)", name)

    def test_names_are_shown_as_the_modules(self) -> None:
        for name in twofour.__all__:
            thing = getattr(twofour, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                self.assertEqual(thing.__module__, "twofour", name)

    def test_arguments_are_in_the_order_of_the_page(self) -> None:
        names = list(inspect.signature(twofour.quantize).parameters)
        page = (ROOT / "tools" / "README.md").read_text().split("\n## quantize\n")[1]
        groups = re.findall(r"\): (`--stats`.*)$", page.split("\n## ")[0], flags=re.M)
        listed = [name.replace("-", "_") for name in re.findall(r"`--([\w-]+)`", groups[0])]
        self.assertEqual([name for name in names if name in listed], listed)

    def test_the_reference_begins_with_an_index_of_its_headings(self) -> None:
        text = (ROOT / "tools" / "python" / "REFERENCE.md").read_text()
        index = text.split("## Index\n")[1].split("\n\n")[0]
        linked = re.findall(r"\[(\w+)\]\(#[\w-]+\)", index)
        self.assertEqual([one for one in linked if one in re.findall(r"^## (\w+)", text, flags=re.M)][:1], ["Commands"])
        for heading in re.findall(r"^### (\w+)$", text, flags=re.M):
            self.assertIn(heading, linked)

    def test_the_reference_has_each_name_and_documents_have_types(self) -> None:
        text = (ROOT / "tools" / "python" / "REFERENCE.md").read_text()
        for name in twofour.__all__:
            if callable(getattr(twofour, name)):
                self.assertIn(f"### {name}\n", text)
        for name in ("Eval", "Generate", "Synth", "Card", "Recipes", "RecipesName", "ConvertDryRun", "LintRules"):
            self.assertTrue(hasattr(twofour.documents, name), name)
            self.assertIn(f"### {name}\n", text)


class Errors(Scratch):
    def test_each_kind_is_the_builtin_too_and_speaks_python(self) -> None:
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        out = self.folder / "out"
        for kind, builtin, act, words in (
            (twofour.NotFoundError, FileNotFoundError, lambda: twofour.open("no/such"), "no/such: no such file"),
            (twofour.NotFoundError, FileNotFoundError, lambda: twofour.lint("no/such"), "no/such: no such file"),
            (twofour.NotFoundError, FileNotFoundError, lambda: twofour.Artifact("no/such"), "no/such: no such file"),
            (twofour.NotFoundError, FileNotFoundError, lambda: twofour.Model("no/such"), "no/such: no such file"),
            (twofour.NotFoundError, FileNotFoundError, lambda: twofour.Tokenizer("no/such"), "no/such: no such file"),
            (twofour.NotFoundError, FileNotFoundError,
             lambda: twofour.convert(SOURCE, out, to="v7", stats="no.safetensors"), "no.safetensors: cannot open"),
            (twofour.ExistsError, FileExistsError, lambda: twofour.convert(SOURCE, self.folder / "v7", to="v7"),
             "found files in it; force=True replaces it$"),
            (twofour.ArgumentError, ValueError, lambda: twofour.convert(SOURCE, out, to="v8"),
             r"^to: expected v7, .*did you mean v7\?\nSee help\(twofour.convert\)\.$"),
            (twofour.ArgumentError, ValueError, lambda: twofour.diff(SOURCE, SOURCE, tolerance="much"), "^tolerance: "),
            (twofour.ArgumentError, ValueError, lambda: twofour.recipes("v7"), "^name: expected .*found 'v7'"),
            (twofour.ArgumentError, ValueError, lambda: twofour.eval(SOURCE), "expected one of text, tokens, found none"),
            (twofour.ArgumentError, ValueError, lambda: twofour.lint(None), "^path: expected a checkpoint or artifact"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.convert(SOURCE, out, max_shard="5GB"),
             r"^convert: unknown argument max_shard; did you mean max_shard_size\?\nSee help\(twofour.convert\)\.$"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.quantize(SOURCE, out, to="nvfp4"),
             r"^quantize: unknown argument to; convert\(to=...\), .*and plan\(to=...\) take it\nSee help\(twofour.quantize\)"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.quantize(SOURCE),
             r"^quantize: missing a required argument: 'destination'\nSee help\(twofour.quantize\)\.$"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.lint(SOURCE, "b"),
             r"^lint: too many positional arguments\nSee help\(twofour.lint\)\.$"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.lint(SOURCE, progress=True),
             "^progress: expected a function of phase, bytes done and bytes in all, found True$"),
            (twofour.ArgumentError, ValueError, lambda: twofour.eval(SOURCE, text="Some words, not a file."),
             "^text: expected the path of a file, found text: .*write it to a file first"),
            (twofour.ArgumentError, ValueError, lambda: twofour.eval(SOURCE, text="words " * 99),
             "^text: expected the path of a file, found text: .*write it to a file first"),
            (twofour.Error, twofour.Error, lambda: twofour.quantize(SOURCE, SOURCE),
             "found one that overlaps it: the source itself, which twofour does not change"),
            (twofour.Error, twofour.Error, lambda: twofour.Artifact(SOURCE),
             "expected an artifact in v7, .*found NVFP4 checkpoint, modelopt.*; convert it to one of these first"),
            (twofour.ArgumentTypeError, TypeError, lambda: twofour.lint(3), "expected a path, found int"),
            (twofour.ArgumentError, ValueError, lambda: twofour.command("lint", SOURCE, headers=True),
             r"unknown option headers; did you mean headers_only\?"),
        ):  # fmt: skip
            with self.assertRaisesRegex(builtin, words) as raised:
                act()
            self.assertIs(type(raised.exception), kind)
            self.assertIsInstance(raised.exception, twofour.Error)
            self.assertNotIn("--", str(raised.exception))
        with self.assertRaises(FileNotFoundError) as missing:
            twofour.open("no/such")
        self.assertEqual((missing.exception.errno, missing.exception.filename), (2, "no/such"))

    def test_a_path_that_looks_like_an_option_is_not_translated(self) -> None:
        for path in ("a --force b", "--stats", "x/--to", "twofour lint --rules"):
            with self.assertRaisesRegex(twofour.NotFoundError, re.escape(f"{path}: no such file or directory")):
                twofour.lint(path)

    def test_messages_of_the_program_become_calls(self) -> None:
        from twofour._words import python_words

        for text, want in (
            ("x; --resume goes on with it, --force replaces it", "x; resume=True goes on with it, force=True replaces it"),
            ("then twofour validate OUT --source BASE --donor DONOR proves it",
             "then twofour.validate(OUT, source=BASE, donor=DONOR) proves it"),
            ("as quantize --stats writes", "as quantize(stats=...) writes"),
            ("URLs are read by lint --headers-only, diff", "URLs are read by lint(headers_only=True), diff"),
            ("hf download org/name --local-dir x", "hf download org/name --local-dir x"),
            ("See twofour lint --rules.", "See twofour.lint(rules=True)."),
        ):  # fmt: skip
            self.assertEqual(python_words(text, "convert"), want)


class Results(Scratch):
    def setUp(self) -> None:
        super().setUp()
        made = twofour.synth(self.folder / "tiny", "llama", layers=1, small=True)
        self.assertEqual((made["shape"], made["dry_run"]), ("llama", False))
        self.model = self.folder / "tiny"
        write_tokenizer(self.model)
        (self.folder / "text").write_text("abcabc and a few words more, for a loss\n" * 4)

    def test_documents_are_those_of_the_program(self) -> None:
        text, model = self.folder / "text", str(self.model)
        twofour.convert(SOURCE, self.folder / "v7", to="v7")
        for words, found in (
            (["eval", model, "--text", str(text), "--context", "16"], twofour.eval(model, text=text, context=16)),
            (["eval", model, "--text", str(text), "--context", "16", "--dry-run"],
             twofour.eval(model, text=text, context=16, dry_run=True)),
            (["generate", model, "--prompt", "abc", "--max-tokens", "3"], twofour.generate(model, "abc", max_tokens=3)),
            (["card", str(self.folder / "v7"), "--base-model", "org/m"],
             twofour.card(self.folder / "v7", base_model="org/m")),
            (["recipes"], twofour.recipes()),
            (["recipes", "v7-experts"], twofour.recipes("v7-experts")),
            (["lint", "--rules"], twofour.lint(rules=True)),
            (["synth", "x", "--shape", "tiny", "--dry-run"], twofour.synth("x", shape="tiny", dry_run=True)),
            (["drop", str(SOURCE), "x", "--modules", "head", "--dry-run"],
             twofour.drop(SOURCE, "x", modules="head", dry_run=True)),
        ):  # fmt: skip
            printed = json.loads(run(*words, "--json").stdout)
            self.assertEqual(without_times(found), without_times(printed), words)

    def test_a_result_is_short_to_look_at_and_whole_as_a_dict(self) -> None:
        result = twofour.convert(SOURCE, self.folder / "v7", to="v7")
        self.assertRegex(repr(result), r"^<result of convert: layout: 'v7', .*modules: <\d+ items>")
        self.assertLess(len(repr(result)), 500)
        whole = dict(result)
        self.assertGreater(len(repr(whole)), 500)
        for same in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), json.loads(json.dumps(result))):
            self.assertEqual(same, whole)

    def test_an_interrupted_command_says_who_it_is_and_what_stays(self) -> None:
        with self.assertRaises(twofour.Interrupted) as stopped:
            twofour.convert(SOURCE, self.folder / "v7", to="v7", progress=lambda *now: True)
        self.assertEqual(
            str(stopped.exception), "convert: interrupted, since progress returned True; nothing that it wrote stays"
        )
        self.assertFalse((self.folder / "v7").exists())
        with self.assertRaisesRegex(twofour.Interrupted, "^lint: interrupted, since progress returned True$"):
            twofour.lint(SOURCE, progress=lambda *now: True)

    def test_the_example_with_a_bar_works(self) -> None:
        """That of tools/python/README.md, with tqdm or with what it uses of it."""
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "tools" / "python" / "README.md").read_text(), flags=re.S)
        example = next(block for block in blocks if "tqdm" in block)

        class Bar:
            """The part of tqdm that the example uses."""

            made: list["Bar"] = []

            def __init__(self, **given: Any) -> None:
                self.total: Any = None
                self.n, self.phases = 0, list[str]()
                Bar.made.append(self)

            def __enter__(self) -> "Bar":
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def set_description(self, text: str, refresh: bool = True) -> None:
                self.phases.append(text)

            def refresh(self) -> None:
                # tqdm divides by the total unless it is None.
                assert self.total is None or self.total > 0

        module = types.ModuleType("tqdm")
        module.tqdm = Bar  # type: ignore[attr-defined]
        os.chdir(self.folder)
        self.addCleanup(os.chdir, ROOT)
        os.symlink(SOURCE, "checkpoint")
        with unittest.mock.patch.dict(sys.modules, {"tqdm": module}):
            exec(example, {})
        bar = Bar.made[-1]
        self.assertEqual(bar.phases[0], "starting")
        self.assertEqual(bar.n, bar.total)
        if importlib.util.find_spec("tqdm") is not None:
            shutil.rmtree(self.folder / "artifact")
            exec(example, {})

    def test_commands_report_progress_and_stop(self) -> None:
        text = self.folder / "text"
        for act in (
            lambda see: twofour.eval(self.model, text=text, context=16, progress=see),
            lambda see: twofour.generate(self.model, "abc", max_tokens=2, progress=see),
            lambda see: twofour.compress(self.model, self.folder / "out", to="v7", text=text, context=16, progress=see),
            lambda see: twofour.synth(self.folder / "other", "tiny", progress=see),
            lambda see: twofour.card(self.folder / "out", progress=see),
            lambda see: twofour.recipes(progress=see),
        ):
            seen: list[tuple[str, int, int]] = []
            act(lambda *now: seen.append(now))
            self.assertEqual(seen[0], ("starting", 0, 0))
            with self.assertRaises(twofour.Interrupted):
                act(lambda *now: True)
        seen = []
        twofour.Model(self.model).generate("abc", 3, progress=lambda *now: seen.append(now))
        self.assertEqual(seen, [("generating", n, 3) for n in (1, 2, 3)])
        with self.assertRaises(twofour.Interrupted):
            twofour.Model(self.model).generate([1], 3, progress=lambda *now: True)

    def test_formats_by_a_size(self) -> None:
        units = [[(4, 1.0), (8, 0.25)], [(4, 3.0), (6, 0.5), (8, 0.0)], [(2, 0.0)]]
        for limit, chosen in ((10, [0, 0, 0]), (12, [0, 1, 0]), (16, [1, 1, 0]), (10**9, [1, 2, 0])):
            self.assertEqual(twofour.choose_formats(units, limit), chosen)
        self.assertEqual(twofour.choose_formats([], 0), [])
        for wrong, limit, reason in ((units, 9, "expected a size of 10 or more"), ([[]], 1, "expected 1 or more, found 0"),
                                     ([[(1, -1.0)]], 1, "expected a loss of 0 or more")):  # fmt: skip
            with self.assertRaisesRegex(twofour.Error, reason):
                twofour.choose_formats(wrong, limit)

    def test_tokens_of_a_text_and_back(self) -> None:
        with twofour.Tokenizer(self.model) as tokenizer:
            self.assertEqual(tokenizer.encode("abcab"), [257, 256])
            self.assertEqual((tokenizer.token(257), tokenizer.find("abc"), tokenizer.find("nothing")), ("abc", 257, None))
            self.assertEqual((len(tokenizer), tokenizer.token(10**6)), (259, ""))
            for text in ("", "a\0b", "\u4f60\u597d, caf\u00e9", "abc" * 100):
                self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)
            self.assertEqual(tokenizer.decode(np.array([257, 258]), skip_special=True), "abc")
            self.assertEqual(tokenizer.decode([257, 258]), "abc<end>")
            self.assertIn("259 ids", repr(tokenizer))
            for wrong, kind in ((lambda: tokenizer.encode(3), TypeError), (lambda: tokenizer.decode([-1]), ValueError),
                                (lambda: tokenizer.encode("\ud800"), twofour.Error),
                                (lambda: tokenizer.token(2**40), ValueError)):  # fmt: skip
                with self.assertRaises(kind):
                    wrong()
        with self.assertRaisesRegex(ValueError, "expected an open tokenizer, found a closed one"):
            tokenizer.encode("a")
        with twofour.Model(self.model) as model:
            self.assertEqual(model.generate("abc", 2), model.generate(model.tokenizer.encode("abc"), 2))
            with self.assertRaisesRegex(ValueError, "expected integers .T., found text; .*Model.tokenizer"):
                model.logits("abc")


if __name__ == "__main__":
    unittest.main()
