"""dequantize.py on tensors of which the values are known by hand."""
import unittest

import torch

import dequantize

E4M3 = torch.float8_e4m3fn


def nvfp4(modelopt):
  """Codes 0.5, -6 in alternation, block scales 2 and 0.5, multiplier 1/4: [1, 32]."""
  codes = torch.full((1, 16), 0xF1, dtype=torch.uint8)
  scale = torch.tensor([[2.0, 0.5]]).to(E4M3)
  if modelopt:
    return {"weight": codes, "weight_scale": scale, "weight_scale_2": torch.tensor(0.25)}
  return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": torch.tensor([4.0])}


class Formats(unittest.TestCase):
  def test_each_format_is_known_by_its_tensors(self):
    codes = torch.zeros(256, 256).to(E4M3)
    cases = {
        "float": {"weight": torch.zeros(2, 2).bfloat16()},
        "mxfp4": {"weight_packed": torch.zeros(2, 16, dtype=torch.uint8), "weight_scale": torch.zeros(2, 1, dtype=torch.uint8)},
        "mxfp8": {"weight": codes, "weight_scale": torch.zeros(256, 8, dtype=torch.uint8)},
        "fp8-tensor": {"weight": codes, "weight_scale": torch.tensor(1.0)},
        "fp8-row": {"weight": codes, "weight_scale": torch.ones(256, 1)},
        "fp8-block": {"weight": codes, "weight_scale_inv": torch.ones(2, 2)},
    }
    for expected, parts in cases.items():
      self.assertEqual(dequantize.format_of(parts), expected)
    self.assertEqual(dequantize.format_of(nvfp4(True)), "nvfp4")
    self.assertEqual(dequantize.format_of(nvfp4(False)), "nvfp4")


class Values(unittest.TestCase):
  def test_nvfp4_is_the_same_in_both_dialects(self):
    expected = torch.tensor([0.25, -3.0] * 8 + [0.0625, -0.75] * 8, dtype=torch.float64)[None]
    for modelopt in (True, False):
      self.assertTrue(torch.equal(dequantize.dequantize(nvfp4(modelopt)), expected))

  def test_blocks_are_128_wide_and_partial_at_the_edge(self):
    parts = {"weight": torch.ones(192, 64).to(E4M3), "weight_scale_inv": torch.tensor([[2.0], [3.0]])}
    rows = dequantize.dequantize(parts)[:, 0]
    self.assertEqual(rows.tolist(), [2.0] * 128 + [3.0] * 64)

  def test_modelopts_blocks_have_four_dimensions(self):
    parts = {"weight": torch.ones(256, 128).to(E4M3), "weight_scale": torch.tensor([2.0, 3.0]).reshape(2, 1, 1, 1)}
    self.assertEqual(dequantize.dequantize(parts)[:, 7].tolist(), [2.0] * 128 + [3.0] * 128)

  def test_int4_has_offset_8_and_the_lowest_bits_first(self):
    word = sum((n + 4) << (4 * n) for n in range(8)) - (1 << 32)
    parts = {"weight_packed": torch.tensor([[word]], dtype=torch.int32), "weight_scale": torch.tensor([[0.5]]),
             "weight_shape": torch.tensor([1, 8])}
    self.assertEqual(dequantize.dequantize(parts).tolist(), [[(n - 4) / 2 for n in range(8)]])

  def test_powers_of_two(self):
    scale = torch.tensor([126, 127, 130], dtype=torch.uint8)
    self.assertEqual(dequantize.power_of_two(scale).tolist(), [0.5, 1.0, 8.0])


class Stacks(unittest.TestCase):
  def setUp(self):
    self.gate, self.up = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 12.0).reshape(2, 3)
    self.values = {"m.experts.0.gate_proj.weight": self.gate, "m.experts.0.up_proj.weight": self.up}

  def together(self, family, name="m.experts.gate_up_proj"):
    return dequantize.put_together(self.values, name, (1, 0, 0), family)[0]

  def test_gpt_oss_interleaves_and_transposes(self):
    self.assertEqual(self.together("gpt_oss").tolist(), [[0, 6, 3, 9], [1, 7, 4, 10], [2, 8, 5, 11]])

  def test_llama4_transposes(self):
    self.assertEqual(self.together("llama4_text").tolist(), [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])

  def test_others_put_gate_above_up(self):
    self.assertTrue(torch.equal(self.together("gemma4_text"), torch.cat([self.gate, self.up])))

  def test_granite_has_its_experts_beside_the_stack(self):
    stack = self.together("granitemoe", "m.input_linear.weight")
    self.assertTrue(torch.equal(stack, torch.cat([self.gate, self.up])))


class Differences(unittest.TestCase):
  def test_every_kind_is_said(self):
    a = {"same": torch.ones(2), "sign": torch.zeros(1), "gone": torch.ones(1), "type": torch.ones(1)}
    b = {"same": torch.ones(2), "sign": -torch.zeros(1), "new": torch.ones(1), "type": torch.ones(1).bfloat16()}
    lines = dequantize.differences(a, b)
    self.assertEqual([line.split()[0] for line in lines], ["missing", "unexpected", "sign:", "type:"])
    self.assertEqual(dequantize.differences(a, a), [])


if __name__ == "__main__":
  unittest.main()
