"""What nvidia-modelopt and llm-compressor export of BIG/llama and BIG/qwen3_moe, single formats and mixed."""
import copy
import pathlib
import shutil

import torch
import transformers

import models

ATTENTION = "re:.*self_attn\\.(q|k|v|o)_proj$"
EXPERTS = "re:.*mlp\\.(experts\\.\\d+\\.)?(gate|up|down)_proj$"
UNQUANTIZED = ["lm_head", "re:.*mlp.gate$"]


def load(source):
  family = transformers.AutoConfig.from_pretrained(source).model_type
  # transformers 5.17.0 multiplies F32 with BF16 in deepseek_v4's compression, which torch refuses.
  dtype = torch.float32 if family == "deepseek_v4" else torch.bfloat16
  return transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()


def calibrate(model):
  with torch.no_grad():
    model(models.tokens())


def with_attention_fp8(config):
  """ModelOpt's configuration with FP8 attention, per tensor, before all else."""
  config = copy.deepcopy(config)
  for quantizer in ("weight_quantizer", "input_quantizer"):
    config["quant_cfg"].append(
        {"quantizer_name": f"*self_attn*{quantizer}", "cfg": {"num_bits": (4, 3), "axis": None}, "enable": True})
  return config


def modelopt_configs():
  import modelopt.torch.quantization as mtq
  with_kv = mtq.utils.update_quant_cfg_with_kv_cache_quant
  return {
      "NVFP4": mtq.NVFP4_DEFAULT_CFG,
      "NVFP4+KV": with_kv(copy.deepcopy(mtq.NVFP4_DEFAULT_CFG), mtq.FP8_KV_CFG["quant_cfg"]),
      "W4A16_NVFP4": mtq.W4A16_NVFP4_CFG,
      "EXPERTS_ONLY": mtq.NVFP4_EXPERTS_ONLY_CFG,
      "MIXED_PRECISION": with_attention_fp8(mtq.NVFP4_DEFAULT_CFG),
  }


def export_modelopt(config, source, folder):
  import modelopt.torch.quantization as mtq
  from modelopt.torch.export import export_hf_checkpoint
  model = load(source)
  mtq.quantize(model, copy.deepcopy(config), calibrate)
  export_hf_checkpoint(model, export_dir=folder)


def llmcompressor_recipes(ignore=UNQUANTIZED):
  from llmcompressor.modifiers.quantization import QuantizationModifier
  simple = {name: [QuantizationModifier(targets="Linear", scheme=name, ignore=ignore)]
            for name in ("NVFP4", "NVFP4A16", "FP8_BLOCK", "MXFP4A16", "W4A16")}
  return simple | {
      "MIXED": [QuantizationModifier(
          config_groups={
              "group_0": group("FP8_DYNAMIC", ATTENTION),
              "group_1": group("NVFP4A16", EXPERTS)},
          ignore=ignore)]}


def group(scheme, target):
  from compressed_tensors.quantization import preset_name_to_scheme
  return preset_name_to_scheme(scheme, [target])


def tokenizer():
  """A tokenizer of numbered words, which llm-compressor demands along with a dataset and never uses."""
  from tokenizers import Tokenizer, models as kinds
  words = kinds.WordLevel({str(n): n for n in range(models.COMMON["vocab_size"])}, unk_token="0")
  return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="0")


def export_llmcompressor(recipe, source, folder):
  from llmcompressor import oneshot
  from datasets import Dataset
  data = Dataset.from_dict({"input_ids": models.tokens().tolist(),
                            "attention_mask": torch.ones_like(models.tokens()).tolist()})
  model = load(source)
  oneshot(model=model, dataset=data, processor=tokenizer(), recipe=recipe, num_calibration_samples=2,
          max_seq_length=models.tokens().shape[1])
  model.save_pretrained(folder, save_compressed=True)


EXPORTS = [("modelopt", n) for n in ("NVFP4", "NVFP4+KV", "W4A16_NVFP4", "EXPERTS_ONLY", "MIXED_PRECISION")] + [
    ("llm-compressor", n) for n in ("NVFP4", "NVFP4A16", "FP8_BLOCK", "MXFP4A16", "W4A16", "MIXED")]


def exists(model, kind):
  """Whether the export makes sense of the model: one without experts has none to quantize alone."""
  return kind != "EXPERTS_ONLY" or model != "BIG/llama"


def export(producer, name, source, folder):
  """Writes the export that producer makes of source with its configuration or scheme of this name."""
  shutil.rmtree(folder, ignore_errors=True)
  pathlib.Path(folder).parent.mkdir(parents=True, exist_ok=True)
  torch.manual_seed(3)
  if producer == "modelopt":
    export_modelopt(modelopt_configs()[name], source, folder)
  else:
    export_llmcompressor(llmcompressor_recipes()[name], source, folder)
