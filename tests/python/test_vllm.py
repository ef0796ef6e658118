"""vLLM 0.33's classes on artifacts, on the CPU: `.ci/nightly python` runs it in vLLM's environment.

Artifacts come from a Python of the other environment (PRODUCERS), for vLLM's has another compressed-tensors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tiny_names import FAMILIES, LAYOUTS
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent


class Ranks(unittest.TestCase):
    folder: Path
    alone: dict[Path, dict[str, Any]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        subprocess.run([os.environ["PRODUCERS"], str(HERE / "make_tiny.py"), str(cls.folder)], check=True)

    def run_ranks(self, artifact: Path, world: int, *options: str) -> list[dict[str, Any]]:
        """What each rank found, in processes of their own."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / str(rank) for rank in range(world)]
            ranks = [
                subprocess.Popen(
                    [sys.executable, str(HERE / "vllm_rank.py"), str(artifact), str(rank), str(world),
                     f"{folder}/sync", str(files[rank]), *options],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for rank in range(world)
            ]  # fmt: skip
            texts = [rank.communicate(timeout=300)[0] for rank in ranks]
            for rank, text in zip(ranks, texts):
                self.assertEqual(rank.returncode, 0, text[-3000:])
            return [torch.load(file, weights_only=False) for file in files]

    def run_alone(self, artifact: Path) -> dict[str, Any]:
        """What one rank finds, run once."""
        if artifact not in self.alone:
            (self.alone[artifact],) = self.run_ranks(artifact, 1)
        return self.alone[artifact]

    def check_loaded(self, found: dict[str, Any]) -> None:
        # Scales of the KV cache have defaults
        left = {
            name for name in found["left"] if not name.endswith((".k_scale", ".v_scale", ".q_scale", ".prob_scale"))
        }
        self.assertEqual(left, set(), "parameters that nothing filled")
        self.assertEqual(found["unknown"], set())
        self.assertEqual(found["base"], "ModelOptNvFp4Config")

    def check_blocks(self, artifact: Path, found: dict[str, Any]) -> None:
        """vLLM's MLPs and MoE blocks against those of transformers on the same artifact in BF16."""
        plain = AutoModelForCausalLM.from_pretrained(artifact.with_name(f"{artifact.name}-bf16"), dtype=torch.float32)
        torch.manual_seed(5)
        x = torch.randn(6, 128, dtype=torch.bfloat16).float()[None]
        self.assertEqual(len(found["blocks"]), len(plain.model.layers))
        for name, got in found["blocks"].items():
            with torch.no_grad():
                want = plain.get_submodule(name).mlp(x)[0].double()
            error = float((got.double() - want).norm() / want.norm())
            self.assertLess(error, 8 * 2**-9, f"{artifact} {name}")  # vLLM's in BF16 between all steps

    def test_every_weight_is_loaded_and_none_is_left(self) -> None:
        for family in FAMILIES:
            for layout in LAYOUTS:
                with self.subTest(f"{family} {layout}"):
                    artifact = self.folder / family / layout
                    found = self.run_alone(artifact)
                    self.check_loaded(found)
                    self.check_blocks(artifact, found)
                    stored = {}
                    for file in artifact.glob("*.safetensors"):
                        with safe_open(file, "pt") as opened:
                            for name in opened.keys():
                                if ".w13_" in name or ".w2_" in name:
                                    stored[name] = opened.get_tensor(name)
                    self.assertEqual(len(found["ours"]), len(stored))
                    for name, (shape, data) in found["ours"].items():
                        file_name = name
                        for part in (".routed_experts", ".gate_up_proj", ".down_proj"):
                            file_name = file_name.replace(part, "")
                        self.assertEqual(shape, tuple(stored[file_name].shape))
                        self.assertTrue(torch.equal(data, stored[file_name].view(torch.uint8)), name)

    def compare(self, whole: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
        """What two ranks give against one: columns next to each other, or sums."""
        self.assertEqual(set(whole["outputs"]), set(ranks[0]["outputs"]))
        for name, block in whole["blocks"].items():
            for rank in ranks:  # of all ranks, added up by vLLM itself
                torch.testing.assert_close(rank["blocks"][name], block, rtol=2**-6, atol=2**-10)
        for name, want in whole["outputs"].items():
            parts = [rank["outputs"][name] for rank in ranks]
            if name.endswith("gate_up_proj"):
                halves = [part.chunk(2, -1) for part in parts]
                got = torch.cat([h[0] for h in halves] + [h[1] for h in halves], -1)
            else:
                got = sum(parts)
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)

    def test_two_tensor_parallel_ranks_are_one(self) -> None:
        for family in FAMILIES:
            for layout in LAYOUTS:
                with self.subTest(f"{family} {layout}"):
                    artifact = self.folder / family / layout
                    ranks = self.run_ranks(artifact, 2)
                    for rank in ranks:
                        self.check_loaded(rank)
                    self.compare(self.run_alone(artifact), ranks)
                    size = [sum(data.numel() for _, data in rank["ours"].values()) for rank in ranks]
                    self.assertEqual(size[0], size[1])

    def test_two_expert_parallel_ranks_are_one(self) -> None:
        for layout in LAYOUTS:
            with self.subTest(layout):
                artifact = self.folder / "mixtral" / layout
                ranks = self.run_ranks(artifact, 2, "--expert-parallel")
                for rank in ranks:
                    self.check_loaded(rank)
                    shapes = {shape[0] for _, (shape, _) in rank["ours"].items()}
                    self.assertEqual(shapes, {2}, "experts of a rank")
                self.compare(self.run_alone(artifact), ranks)


class Configuration(unittest.TestCase):
    """quantization_config as artifacts have it."""

    @classmethod
    def setUpClass(cls) -> None:
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"
        import vllm.platforms
        from vllm.platforms.cpu import CpuPlatform

        vllm.platforms._current_platform = CpuPlatform()
        import support  # noqa: F401  (the module's path)

        from twofour.integrations import vllm as plugin

        cls.plugin = plugin

    def parsed(self, **settings: Any) -> Any:
        return self.plugin.TwofourVllmConfig.from_config({"quant_method": "twofour", **settings})

    def test_one_layout_or_groups_of_several(self) -> None:
        one = self.parsed(layout="v7", pattern="2:4", modules=["model.layers.*.mlp.experts", "model.layers.0.mlp"])
        self.assertEqual(one.layout_of("model.layers.11.mlp.experts"), "v7")
        self.assertEqual(one.layout_of("model.layers.0.mlp"), "v7")
        self.assertIsNone(one.layout_of("model.layers.1.mlp"))
        several = self.parsed(
            layout="mixed",
            groups=[
                {"layout": "v7", "pattern": "2:4", "modules": ["model.layers.0.mlp.experts"]},
                {"layout": "g8", "pattern": "dense", "modules": ["model.layers.1.mlp.experts"]},
            ],
        )
        self.assertEqual(several.layout_of("model.layers.1.mlp.experts"), "g8")
        with self.assertRaises(ValueError):
            self.parsed(layout="v7", modules=[])

    def test_the_base_is_the_sources_own_configuration(self) -> None:
        modules = dict(layout="v7", modules=["model.layers.*.mlp"])
        bases = {
            "ModelOptNvFp4Config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            "CompressedTensorsConfig": {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": []},
            "Fp8Config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        }
        for name, base in bases.items():
            self.assertEqual(type(self.parsed(**modules, base=base).base).__name__, name)
        self.assertIsNone(self.parsed(**modules).base)

    def test_names_of_files_become_those_of_linears(self) -> None:
        config = self.parsed(layout="v7", modules=["model.layers.*.mlp.experts", "model.layers.0.mlp"])
        mapper = config.get_checkpoint_weight_mapper()
        for name, want in (
            ("model.layers.0.mlp.w13_comp", "model.layers.0.mlp.gate_up_proj.w13_comp"),
            ("model.layers.0.mlp.w2_global_scale", "model.layers.0.mlp.down_proj.w2_global_scale"),
            ("model.layers.0.mlp.up_proj.input_scale", None),
            ("model.layers.3.mlp.experts.7.down_proj.input_scale", None),
            ("model.layers.3.mlp.experts.w13_comp", "model.layers.3.mlp.experts.w13_comp"),
            ("model.layers.0.self_attn.q_proj.input_scale", "model.layers.0.self_attn.q_proj.input_scale"),
        ):
            self.assertEqual(mapper.map_name(name), want)


if __name__ == "__main__":
    unittest.main()
