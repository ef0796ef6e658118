"""What the Python module and the C interface give, by module_calls.py; compared where both builds have a library."""
import checkpoints as c
from cases import Case, Group, checkpoint, convert
from models import TEXTS, TOKENS, model
from published import synth
from sources import float_linear_of, uneven


def call(name, what, *paths):
  return Case(name, ["module", what, *paths])


def all_groups():
  config = c.model_config("qwen3_moe", 64, 48, experts=4)
  for name, make, quantized in (("NVFP4", uneven, {"quantization_config": c.MODELOPT}), ("BF16", float_linear_of("BF16"), {})):
    cases = [convert("v7", ["v7"]), convert("g8", ["g8"]), convert("fp8", ["fp8"], "--odd-blocks", "write"),
             call("commands", "commands", "{src}", "{work}"), call("errors", "errors", "{src}", "{work}"), call("read", "read", "{src}"),
             call("options", "options", "{src}", "{work}")]
    cases += [call(f"{made} read", "read", "{of:%s}" % made) for made in ("v7", "g8", "fp8")]
    cases += [call(f"{made} layers", "layers", "{of:%s}" % made) for made in ("v7", "g8")]
    yield Group(f"module {name}", checkpoint(lambda make=make: c.experts(make, 110), {**config, **quantized}), cases)
  for shape, dialect in (("deepseek-v4", "released"), ("llama", "awq"), ("llama", "gptq"), ("gpt-oss", "released"), ("kimi-k2-thinking", "released"),
                         ("qwen3.6-35b-a3b", "nvidia"), ("minimax-m3", "released")):
    yield Group(f"module {shape} {dialect}", None, [synth(shape, dialect, "--small", "--layers", "2", "--vocab", "64"), call("read", "read", "{src}")])
  for name in ("qwen3_moe", "llama", "gpt_oss"):
    yield Group(f"module model {name}", model(name), [call("logits", "logits", "{src}"), call("evaluate", "evaluate", "{src}", TOKENS[1], TEXTS[1])])
