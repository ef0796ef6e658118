#!/usr/bin/env python3
"""Calls the Python module, and the C interface below it, and prints what they give as one JSON document.

  module_calls.py commands|options|errors|read|layers|logits|evaluate PATH ...

PYTHONPATH names the module, TWOFOUR_LIBRARY its library. NumPy is not needed: values are read by ctypes.
"""
import array
import ctypes as c
import hashlib
import json
import math
import os
import sys

import twofour


class Model(c.Structure):
  _fields_ = [("size", c.c_size_t), ("layers", c.c_int64), ("hidden", c.c_int64), ("vocabulary", c.c_int64)]


class Tokens(c.Structure):
  _fields_ = [("size", c.c_size_t), ("m", c.c_int64), ("top_k", c.c_int64), ("dtype", c.c_int32), ("hidden", c.c_void_p),
              ("topk_ids", c.c_void_p), ("topk_weights", c.c_void_p), ("out", c.c_void_p), ("error_flag", c.c_void_p)]


def library():
  lib = c.CDLL(os.environ["TWOFOUR_LIBRARY"])
  lib.twofour_last_error.restype = c.c_char_p
  return lib


def check(lib, failed):
  if failed:
    raise SystemExit(lib.twofour_last_error().decode())


def digest(content):
  return hashlib.sha256(bytes(content)).hexdigest()[:16]


def attempt(call):
  """What a call gives, or what it raises."""
  try:
    return call()
  except (twofour.Error, ValueError, TypeError, KeyError, IndexError) as error:
    return f"{type(error).__name__}: {error}"


def commands(source, work):
  out = lambda name: f"{work}/{name}"
  return {"convert": twofour.convert(source, out("v7"), to="v7"), "inspect": twofour.inspect(out("v7"), stats=True), "lint": twofour.lint(source),
          "diff": twofour.diff(source, out("v7")), "validate": twofour.validate(out("v7"), source=source), "quantize": attempt(
              lambda: twofour.quantize(source, out("quantized"), dialect="compressed-tensors")), "prune": attempt(
              lambda: twofour.prune(source, out("pruned"))), "card": twofour.command("card", out("v7")), "recipes": twofour.command("recipes"),
          "help": twofour.command("help", "convert"), "drop": twofour.command("drop", source, out("dropped"), modules="head")}


def options(source, work):
  """Each word of a rule by its name in Python."""
  words = {"fold": "any", "granularity": "row", "block": "32x32", "scale_dtype": "bf16", "odd_blocks": "write", "arithmetic": "modelopt", "exact": "off",
           "input_scale": "constant=0.5", "one_input_scale_a_layer": True, "draft_experts": "keep", "block_scale": "mse", "zero_block": "zero",
           "max_shard_size": "20kB", "include": ["*experts*", "*o_proj"], "exclude": "*o_proj", "also": "*o_proj", "unknown_word": 1, "fold_": 2}
  return {f"{to} {key}": attempt(lambda: twofour.convert(source, f"{work}/x", to=to, dry_run=True, **{key: value}))
          for to in ("v7", "nvfp4", "fp8") for key, value in words.items()}


def errors(source, work):
  return {name: attempt(call) for name, call in {
      "unknown layout": lambda: twofour.convert(source, f"{work}/x", to="v8"), "no source": lambda: twofour.lint(f"{work}/none"),
      "no target": lambda: twofour.convert(source, f"{work}/x"), "unknown command": lambda: twofour.command("convrt"),
      "run": lambda: twofour.command("run", source), "open": lambda: str(twofour.open(f"{work}/none")), "artifact": lambda: str(twofour.Artifact(source)),
      "model": lambda: str(twofour.Model(source)), "module": lambda: str(twofour.open(source)["no.such"]), "layout": lambda: twofour.layout_parts("v9", (1, 16, 16)),
      "K": lambda: twofour.layout_parts("v7", (1, 16, 17)), "stats": lambda: twofour.stats("inspect", source)}.items()}


def read(path):
  lib, found = library(), twofour.open(path)
  handle = c.c_void_p()
  check(lib, lib.twofour_open_checkpoint(os.fsencode(path), c.byref(handle)))

  def values(name, shape):
    begin, end = (c.c_int64 * len(shape))(), (c.c_int64 * len(shape))(*shape)
    count = math.prod(shape)
    floats = (c.c_float * max(count, 1))()
    if lib.twofour_read_values(handle, name.encode(), len(shape), begin, end, floats, c.c_uint64(count)):
      return lib.twofour_last_error().decode()
    return digest(memoryview(floats).cast("B")[:4 * count])
  document = {"what": found.what,
              "tensors": {t.name: [t.dtype, t.shape, t.nbytes, t.file, digest(t.tobytes()), values(t.name, t.shape)] for t in found.tensors.values()},
              "modules": {m.name: [m.format, m.shape, m.nbytes, m.tensors, values(m.name, m.shape)] for m in found.modules.values()},
              "matrices": {m.name: [m.module, m.shape, values(m.name, m.shape)] for m in found.matrices.values()}}
  lib.twofour_close_checkpoint(handle)
  return document


def layers(path):
  lib, artifact = library(), twofour.Artifact(path)
  handle, document = c.c_void_p(), {}
  check(lib, lib.twofour_open(os.fsencode(path), c.byref(handle)))
  for i, shape in enumerate(artifact.layers):
    loaded, m, top_k = c.c_void_p(), 3, 2
    check(lib, lib.twofour_load(handle, c.c_int64(i), 0, None, c.byref(loaded)))
    hidden = (c.c_float * (m * shape.hidden))(*[(n % 17 - 8) / 8 for n in range(m * shape.hidden)])
    ids, weights = (c.c_int32 * (m * top_k))(), (c.c_float * (m * top_k))()
    check(lib, lib.twofour_route(handle, c.c_int64(i), hidden, c.c_int64(m), c.c_int64(top_k), ids, weights))
    out = (c.c_float * (m * shape.hidden))()
    address = lambda values: c.cast(values, c.c_void_p)
    tokens = Tokens(c.sizeof(Tokens), m, top_k, 0, address(hidden), address(ids), address(weights), address(out), None)
    check(lib, lib.twofour_forward(loaded, c.byref(tokens), None, c.c_size_t(0), None))
    document[shape.name] = {"shape": str(shape), "ids": list(ids), "weights": list(weights), "out": digest(out),
                            "parts": str(twofour.layout_parts(shape.layout, (shape.experts, shape.hidden, shape.intermediate)))}
    lib.twofour_unload(loaded)
  lib.twofour_close(handle)
  return document


def logits(path):
  lib, model, info, sequence = library(), c.c_void_p(), Model(size=c.sizeof(Model)), c.c_void_p()
  check(lib, lib.twofour_open_model(os.fsencode(path), c.byref(model)))
  check(lib, lib.twofour_get_model_info(model, c.byref(info)))
  check(lib, lib.twofour_begin_sequence(model, c.byref(sequence)))
  tokens = array.array("i", [i * i % info.vocabulary for i in range(20)])
  found = (c.c_float * (len(tokens) * info.vocabulary))()
  check(lib, lib.twofour_append(sequence, (c.c_int32 * len(tokens))(*tokens), c.c_int64(len(tokens)), 1, found))
  return {"layers": info.layers, "hidden": info.hidden, "vocabulary": info.vocabulary, "logits": digest(found), "first": list(found[:info.vocabulary])}


def evaluate(path, tokens, text):
  return {"tokens": twofour.command("eval", path, tokens=tokens, limit=1), "text": twofour.command("eval", path, text=text, context=32, limit=1),
          "generate": twofour.command("generate", path, prompt="HELLO", max_tokens=4)}


if __name__ == "__main__":
  calls = {f.__name__: f for f in (commands, options, errors, read, layers, logits, evaluate)}
  print(json.dumps(calls[sys.argv[1]](*sys.argv[2:]), indent=1))
