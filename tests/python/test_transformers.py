"""transformers 5 on artifacts, on the CPU: `.ci/nightly python` runs it."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support import ROOT, Scratch, stored
from tiny import make_artifact, make_model
from tiny_names import LAYOUTS
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(ROOT / "tests" / "loaders"))
import models

import twofour
import twofour.integrations.transformers  # noqa: F401
from twofour.integrations.fp8_linear import Fp8Linear
from twofour.integrations.stored_block import StoredBlock
from twofour.integrations.stored_linear import CheckpointLinear

#: Between weights of NVFP4 and those rounded to BF16, 2^-9 each at most; a wrong row or scale gives an error near 1.
BF16_ROUNDINGS = 4 * 2**-9


def load(path: Path, **settings: Any) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **settings)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, wrong
    return model


def tensor_bytes() -> int:
    """Bytes of all tensors that are alive, those that share memory once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Families(Scratch):
    def check_family(self, family: str, blocks: int) -> None:
        source = make_model(family, self.folder)
        for layout in LAYOUTS:
            with self.subTest(f"{family} {layout}"):
                artifact, dense = self.folder / layout, self.folder / f"{layout}-bf16"
                make_artifact(source, artifact, layout)
                twofour.convert(artifact, dense, to="bf16")
                self.check_bytes(artifact, blocks)
                self.check_numbers(artifact, dense)

    def check_bytes(self, artifact: Path, blocks: int) -> None:
        before = tensor_bytes()
        model = load(artifact, dtype=torch.bfloat16)
        self.assertEqual(sum(isinstance(m, StoredBlock) for m in model.modules()), blocks)
        files = sum(
            len(data)
            for path in artifact.glob("*.safetensors")
            for name, (_, _, data) in stored(path).items()
            if not name.endswith(".input_scale")
        )
        held = tensor_bytes() - before - sum(b.nbytes for b in model.buffers())
        self.assertEqual(held, files, "bytes of weights that are held")
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
        held = tensor_bytes() - before - sum(b.nbytes for b in model.buffers())
        self.assertEqual(held, files, "bytes of weights that are held after a step")

    def check_numbers(self, artifact: Path, dense: Path) -> None:
        ids = torch.arange(24).reshape(2, 12) % 128
        model, plain = load(artifact, dtype=torch.float32), load(dense, dtype=torch.float32)
        with torch.no_grad():
            got, want = model(ids).logits.double(), plain(ids).logits.double()
        self.assertLess(float((got - want).norm() / want.norm()), BF16_ROUNDINGS)
        made = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
        self.assertEqual(made.shape, (1, 16))
        again = model(made[:, :-1]).logits.argmax(-1)[0, 11:]
        self.assertEqual(made[0, 12:].tolist(), again.tolist())

    def test_llama(self) -> None:
        self.check_family("llama", 2)

    def test_mixtral(self) -> None:
        self.check_family("mixtral", 2)

    def test_qwen3_moe(self) -> None:
        self.check_family("qwen3_moe", 2)


class AllFamilies(Scratch):
    """Every family of tests/loaders, all of it quantized, experts and MLPs in v7."""

    #: What is refused, and why.
    REFUSED = {
        "deepseek_v4": "expected a linear .*, found DeepseekV4GroupedLinear",
        "gpt_oss": "expected weights alone, found gate_up_proj_bias",
        "llama4_text": "expected a module that takes hidden, ids and weights, found Llama4TextExperts",
        "gemma4_text": "expected the activation silu, found gelu",
    }

    def test_logits_of_most_tokens_are_those_of_bf16(self) -> None:
        for family in models.FAMILIES:
            with self.subTest(family):
                folder = self.folder / family
                models.make(f"TINY/{family}", folder / "source")
                twofour.quantize(folder / "source", folder / "nvfp4")
                twofour.convert(folder / "nvfp4", folder / "v7", to="v7")
                if family in self.REFUSED:
                    with self.assertRaisesRegex(twofour.Error, self.REFUSED[family]):
                        load(folder / "v7", dtype=torch.float32)
                    continue
                twofour.convert(folder / "v7", folder / "bf16", to="bf16")
                model, plain = load(folder / "v7", dtype=torch.float32), load(folder / "bf16", dtype=torch.float32)
                with torch.no_grad():
                    got, want = (m(models.tokens()).logits.double() for m in (model, plain))
                # Routers of random models choose other experts for single tokens, where two are nearly equal
                error = ((got - want).norm(dim=-1) / want.norm(dim=-1)).median()
                self.assertLess(float(error), 2 * BF16_ROUNDINGS)


class Blocks(Scratch):
    def setUp(self) -> None:
        super().setUp()
        self.artifact = self.folder / "v7"
        make_artifact(make_model("qwen3_moe", self.folder), self.artifact, "v7")

    def test_a_compiled_block_gives_the_same_numbers(self) -> None:
        block = load(self.artifact, dtype=torch.float32).model.layers[0].mlp
        x = torch.randn(1, 5, 128)
        torch._dynamo.reset()
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), block(x))

    def test_bytes_keep_their_types_wherever_they_go(self) -> None:
        block = next(m for m in load(self.artifact, dtype=torch.float32).modules() if isinstance(m, StoredBlock))
        types = {name: p.dtype for name, p in block.named_parameters()}
        block.to(torch.bfloat16)
        block.half()
        self.assertEqual({name: p.dtype for name, p in block.named_parameters()}, types)

    def test_a_model_cannot_be_saved_as_what_it_is_not(self) -> None:
        model = load(self.artifact)
        with self.assertRaises(ValueError):
            model.save_pretrained(self.folder / "again")

    def test_damage_and_misfits_are_refused(self) -> None:
        config = json.loads((self.artifact / "config.json").read_text())

        def edited(**changes: Any) -> Path:
            shutil.rmtree(self.folder / "edited", ignore_errors=True)
            shutil.copytree(self.artifact, self.folder / "edited")
            (self.folder / "edited" / "config.json").write_text(json.dumps({**config, **changes}))
            return self.folder / "edited"

        with self.assertRaisesRegex(twofour.Error, "expected the activation silu, found gelu"):
            load(edited(hidden_act="gelu"))
        damaged = edited()
        file = next(damaged.glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        at = begin + header["model.layers.0.mlp.experts.w2_meta"]["data_offsets"][0]
        data[at] = 0x00
        file.write_bytes(data)
        with self.assertRaisesRegex(
            twofour.Error, "layers.0.mlp.experts.w2_meta: expert 0, row 0, column 0: expected two"
        ):
            load(damaged)

    def test_linears_that_stayed_in_nvfp4_run_too(self) -> None:
        for dialect in ("modelopt", "compressed-tensors"):
            with self.subTest(dialect):
                source, mixed = self.folder / f"all-{dialect}", self.folder / f"mixed-{dialect}"
                twofour.quantize(self.folder / "bf16", source, dialect=dialect)
                make_artifact(source, mixed, "v7")
                twofour.convert(mixed, self.folder / f"dense-{dialect}", to="bf16")
                model = load(mixed, dtype=torch.float32)
                self.assertEqual(sum(isinstance(m, CheckpointLinear) for m in model.modules()), 8)
                plain = load(self.folder / f"dense-{dialect}", dtype=torch.float32)
                ids = torch.arange(24).reshape(2, 12)
                with torch.no_grad():
                    got, want = model(ids).logits.double(), plain(ids).logits.double()
                self.assertLess(float((got - want).norm() / want.norm()), BF16_ROUNDINGS)

    def test_linears_that_stayed_in_fp8_run_too(self) -> None:
        for how, scales in (("tensor", {}), ("row", {}), ("block", dict(dialect="deepseek", odd_blocks="write"))):
            with self.subTest(how):
                fp8, graft = self.folder / f"fp8-{how}", self.folder / f"mixed-fp8-{how}"
                granularity = {} if how == "block" else dict(granularity=how)
                twofour.convert(self.artifact, self.folder / f"plain-{how}", to="bf16")
                twofour.quantize(self.folder / "bf16", self.folder / f"q-{how}")
                twofour.convert(self.folder / f"q-{how}", fp8, to="fp8", **granularity, **scales)
                # Attention of one, experts and MLPs of the other
                tensors = {n: t for path in self.artifact.glob("*.safetensors") for n, t in load_file(path).items()}
                other = {n: t for path in fp8.glob("*.safetensors") for n, t in load_file(path).items()}
                tensors = {n: t for n, t in tensors.items() if ".self_attn." not in n or "norm" in n}
                tensors |= {n: t for n, t in other.items() if ".self_attn." in n and "norm" not in n}
                shutil.copytree(self.artifact, graft, ignore=shutil.ignore_patterns("*.safetensors*"))
                save_file(tensors, graft / "model.safetensors")
                dense = {n: t for path in (self.folder / f"plain-{how}").glob("*.safetensors")
                         for n, t in load_file(path).items()}  # fmt: skip
                with twofour.open(fp8) as checkpoint:
                    for name in dense:
                        if ".self_attn." in name and "norm" not in name:
                            values = torch.from_numpy(checkpoint[name.removesuffix(".weight")][()])
                            dense[name] = values.to(torch.bfloat16)
                plain_folder = self.folder / f"dense-{how}"
                shutil.copytree(self.folder / f"plain-{how}", plain_folder,
                                ignore=shutil.ignore_patterns("*.safetensors*"))  # fmt: skip
                save_file(dense, plain_folder / "model.safetensors")
                model, plain = load(graft, dtype=torch.float32), load(plain_folder, dtype=torch.float32)
                self.assertEqual(sum(isinstance(m, Fp8Linear) for m in model.modules()), 8)
                ids = torch.arange(24).reshape(2, 12)
                with torch.no_grad():
                    got, want = model(ids).logits.double(), plain(ids).logits.double()
                self.assertLess(float((got - want).norm() / want.norm()), BF16_ROUNDINGS)

    def test_what_nothing_multiplies_is_refused(self) -> None:
        tensors = {n: t for path in self.artifact.glob("*.safetensors") for n, t in load_file(path).items()}
        name = "model.layers.0.self_attn.q_proj.weight"
        odd = {**tensors, name: tensors[name].to(torch.float8_e5m2)}
        for path in self.artifact.glob("*.safetensors"):
            path.unlink()
        (self.artifact / "model.safetensors.index.json").unlink()
        save_file(odd, self.artifact / "model.safetensors")
        with self.assertRaisesRegex(twofour.Error, "expected floats, NVFP4 or FP8 outside of layouts, found .*q_proj"):
            load(self.artifact)

    def said_by_transformers(self, imports: str) -> str:
        """What a process of its own says that loads the artifact after `imports`."""
        code = (
            f"import sys\n{imports}\nfrom transformers import AutoModelForCausalLM\n"
            "AutoModelForCausalLM.from_pretrained(sys.argv[1])"
        )
        paths = os.pathsep.join([str(ROOT / "tools" / "python"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.artifact)],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        return done.stdout + done.stderr

    def test_config_names_the_import_without_which_transformers_takes_random_weights(self) -> None:
        entry = json.loads((self.artifact / "config.json").read_text())["quantization_config"]
        self.assertEqual(entry["import"], twofour.integrations.transformers.__name__)
        self.assertIn(f"import {entry['import']}\n", (self.artifact / "README.md").read_text())
        without, imported = self.said_by_transformers(""), self.said_by_transformers(f"import {entry['import']}")
        self.assertIn("Unknown quantization type, got twofour", without)
        self.assertRegex(without, r"mlp\S* +\| MISSING")
        self.assertNotIn("Unknown quantization type", imported)
        self.assertNotIn("MISSING", imported)


if __name__ == "__main__":
    unittest.main()
