"""What configs say of a checkpoint's formats, in many words: what every reader of them makes of it."""
import copy

import checkpoints as c
from cases import Case, Group, checkpoint
from sources import compressed, gpt_oss_mxfp4, plain

LOOKS = {"lint": ["lint", "{work}/art"], "inspect": ["inspect", "{work}/art"], "nvfp4": ["convert", "{work}/art", "{out}", "--to", "nvfp4"],
         "v7": ["convert", "{work}/art", "{out}", "--to", "v7"], "bf16": ["convert", "{work}/art", "{out}", "--to", "bf16"],
         "quantize": ["quantize", "{work}/art", "{out}"]}


def variants(changes, files=False):
  """Commands on copies of the source, `change(config)` or, of other files, `change(copy)` made to each."""
  cases = []
  for name, change in changes.items():
    def prepare(at, change=change):
      made = c.Copy(at("{src}"), at("{work}/art"))
      if files:
        change(made)
      else:
        made.json("config.json", change)
    cases += [Case(f"{name} {what}", words, prepare) for what, words in LOOKS.items()]
  return cases


def quantization(**more):
  return lambda config: config["quantization_config"].update(more)


def group_of(**more):
  return lambda config: config["quantization_config"]["config_groups"]["group_0"].update(more)


def weights_of(**more):
  return lambda config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(more)


def without(*keys):
  return lambda config: [config["quantization_config"].pop(key, None) for key in keys] and None


def second_group(targets, **weights):
  def change(config):
    q = config["quantization_config"]
    q["config_groups"]["group_1"] = {**copy.deepcopy(q["config_groups"]["group_0"]), "targets": targets}
    q["config_groups"]["group_1"]["weights"].update(weights)
  return change


SHARED = {
    "as it is": lambda config: None, "no list": without("ignore"), "empty list": quantization(ignore=[]), "list of numbers": quantization(ignore=[1]),
    "list as text": quantization(ignore="lm_head"), "all ignored": quantization(ignore=["*"]), "expression": quantization(ignore=["re:.*gate$", "lm_head"]),
    "bad expression": quantization(ignore=["re:("]), "name of a module": quantization(ignore=["model.layers.0.self_attn.q_proj", "lm_head"]),
    "fused name": quantization(ignore=["model.layers.0.self_attn.qkv_proj", "lm_head"]), "prefix": quantization(ignore=["model.layers.0.self_attn", "lm_head"]),
    "prefix and a star": quantization(ignore=["model.layers.0.self_attn*", "lm_head"]), "class": quantization(ignore=["Linear"]),
    "no groups": without("config_groups"), "groups a list": quantization(config_groups=[]), "no targets": group_of(targets=[]),
    "targets as text": group_of(targets="Linear"), "targets of experts": group_of(targets=["re:.*experts.*"]), "unknown targets": group_of(targets=["Conv2d"]),
    "group size 32": weights_of(group_size=32), "group size as text": weights_of(group_size="16"), "8 bits": weights_of(num_bits=8),
    "integers": weights_of(type="int"),
    "dynamic": weights_of(dynamic=True), "asymmetric": weights_of(symmetric=False), "strategy": weights_of(strategy="channel"),
    "order": weights_of(actorder="group"),
    "inputs": group_of(input_activations={"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}),
    "inputs null": group_of(input_activations=None),
    "inputs of 8 bits": group_of(input_activations={"num_bits": 8, "type": "float", "dynamic": False}), "outputs": group_of(output_activations={"num_bits": 8}),
    "FP8 cache": quantization(kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}),
    "cache of 4 bits": quantization(kv_cache_scheme={"num_bits": 4, "type": "float"}),
    "second group": second_group(["re:.*o_proj"], num_bits=8, group_size=None, strategy="channel"), "same group twice": second_group(["Linear"]),
    "unknown method": quantization(quant_method="gguf"), "no method": without("quant_method"), "method as a number": quantization(quant_method=4),
    "nested": lambda config: config.update(text_config={"quantization_config": config.pop("quantization_config")}),
    "compression_config": lambda config: config.update(compression_config=config.pop("quantization_config")),
    "null": lambda config: config.update(quantization_config=None),
    "a list": lambda config: config.update(quantization_config=[]), "unheard of key": quantization(unheard_of={"a": 1}),
    "no type": lambda config: config.pop("model_type") and None}
MODELOPT = {
    **SHARED, "algorithm": quantization(quant_algo="FP8"), "no algorithm": without("quant_algo"), "W4A16": quantization(quant_algo="W4A16_NVFP4"),
    "AWQ": quantization(quant_algo="NVFP4_AWQ"),
    "mixed": quantization(quant_algo="MIXED_PRECISION", quantized_layers={"model.layers.0.self_attn.o_proj": {"quant_algo": "NVFP4", "group_size": 16}}),
    "mixed of nothing": quantization(quant_algo="MIXED_PRECISION"),
    "mixed globs": quantization(quant_algo="MIXED_PRECISION", quantized_layers={"*": {"quant_algo": "NVFP4", "group_size": 16}}),
    "old producer": quantization(producer={"name": "modelopt", "version": "0.20.0"}), "no producer": without("producer"),
    "exclude_modules": quantization(exclude_modules=["lm_head"])}
COMPRESSED = {
    **SHARED, "format": quantization(format="pack-quantized"), "format of the group": group_of(format="float-quantized"),
    "mixed-precision": quantization(format="mixed-precision"),
    "no format": without("format"), "dense": quantization(format="dense"),
    "sparsity": quantization(sparsity_config={"format": "sparse-24-bitmask", "targets": ["Linear"]}),
    "transforms": quantization(transform_config={"config_groups": {}}), "frozen": quantization(quantization_status="frozen"),
    "compressed": quantization(quantization_status="compressed"),
    "global ratio": quantization(global_compression_ratio=1.5)}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
FP8 = {
    "as it is": lambda config: None, "no blocks": without("weight_block_size"), "blocks of 64": quantization(weight_block_size=[64, 64]),
    "blocks as text": quantization(weight_block_size="128"),
    "one number": quantization(weight_block_size=[128]), "static": quantization(activation_scheme="static"), "format": quantization(fmt="e5m2"),
    "e4m3": quantization(fmt="e4m3"),
    "ue8m0": quantization(scale_fmt="ue8m0"), "left": quantization(modules_to_not_convert=["lm_head", "model.layers.0.self_attn"]),
    "left as text": quantization(modules_to_not_convert="lm_head"),
    "left null": quantization(modules_to_not_convert=None), "none": lambda config: config.pop("quantization_config") and None,
    "method": quantization(quant_method="fbgemm_fp8")}
MXFP4 = {
    "as it is": lambda config: None, "left": quantization(modules_to_not_convert=["model.layers.*.self_attn", "lm_head"]),
    "method": quantization(quant_method="mxfp8"),
    "none": lambda config: config.pop("quantization_config") and None, "limit": lambda config: config.update(swiglu_limit=7.0),
    "limit as text": lambda config: config.update(swiglu_limit="7")}


def hf_file(**more):
  def change(made):
    c.write_json(made.path / "hf_quant_config.json", {"producer": {"name": "modelopt", "version": "0.45.0"}, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head", "*.mlp.gate"], **more}})
  return change


def alone(change):
  """hf_quant_config.json without what config.json says."""
  def both(made):
    change(made)
    made.json("config.json", lambda config: config.pop("quantization_config", None) and None)
  return both


FILES = {
    "as it is": hf_file(), "alone": alone(hf_file()), "another algorithm": hf_file(quant_algo="FP8"),
    "alone another algorithm": alone(hf_file(quant_algo="FP8")),
    "FP8 cache": hf_file(kv_cache_quant_algo="FP8"), "group size 32": alone(hf_file(group_size=32)), "all excluded": alone(hf_file(exclude_modules=["*"])),
    "none excluded": alone(hf_file(exclude_modules=[])), "other lists": hf_file(exclude_modules=["lm_head"]),
    "mixed": alone(hf_file(quant_algo="MIXED_PRECISION", quantized_layers={"model.layers.0.self_attn.o_proj": {"quant_algo": "NVFP4", "group_size": 16}})),
    "no JSON": lambda made: (made.path / "hf_quant_config.json").write_text("{"), "empty": lambda made: (made.path / "hf_quant_config.json").write_text("{}"),
    "of another method": lambda made: c.write_json(made.path / "quantize_config.json", {"bits": 4, "group_size": 128, "quant_method": "gptq"}),
    "of AWQ": lambda made: c.write_json(made.path / "quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "gemm"}),
    "tokenizer no JSON": lambda made: (made.path / "tokenizer.json").write_text("{"),
    "generation config": lambda made: c.write_json(made.path / "generation_config.json", {"eos_token_id": 999}),
    "a key twice": lambda made: made.file_bytes("config.json", lambda b: b.replace(b'{', b'{"model_type": "mixtral",', 1))}


def all_groups():
  moe = c.model_config("qwen3_moe", 64, 48, experts=2)
  fp8 = lambda m, _, n, k: m.fp8(n, k, ".weight_scale_inv", "F32", "block")
  sources = {
      "modelopt": (lambda: c.experts(plain, 130, count=2), {**moe, "quantization_config": c.MODELOPT}, variants(MODELOPT)),
      "compressed-tensors": (lambda: c.experts(compressed, 131, count=2), {**moe, "quantization_config": c.COMPRESSED}, variants(COMPRESSED)),
      "fp8": (lambda: c.experts(fp8, 132, count=2), {**moe, "quantization_config": BLOCKS}, variants(FP8)),
      "mxfp4": (lambda: c.stacks(gpt_oss_mxfp4(6), 133, 4, 64, bias=True), {**c.model_config("gpt_oss", 64, 32, experts=4),
                                                                             "quantization_config": {"quant_method": "mxfp4"}}, variants(MXFP4)),
      "files": (lambda: c.experts(plain, 134, count=2), {**moe, "quantization_config": c.MODELOPT}, variants(FILES, files=True))}
  for name, (tensors, config, cases) in sources.items():
    yield Group(f"configs {name}", checkpoint(tensors, config), cases)
