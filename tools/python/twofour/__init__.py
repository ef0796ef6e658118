"""Converts, checks and proves quantized LLM checkpoints, NVFP4 above all.

    import twofour

    twofour.convert("checkpoint", "artifact", to="v7")
    assert twofour.lint("artifact")["sound"]
    weights = twofour.open("artifact")["model.layers.0.mlp.down_proj"][:4, :16]   # float32, any format

Commands are functions that return what `twofour --json` prints, without starting a process. `open` reads values and
stored bytes, `Artifact` runs layers on arrays of torch, CuPy or NumPy, `Model` whole models on the CPU. What fails
raises `Error` with the program's message. twofour.integrations has transformers and vLLM.
"""

from ._checkpoint import Checkpoint, Matrix, Module, Tensor, open
from ._commands import (
    command,
    compress,
    convert,
    diff,
    has_cuda,
    inspect,
    lint,
    prune,
    quantize,
    repair,
    stats,
    validate,
    version,
)
from ._layer import Artifact, Layer, LayerShape, StoredPart, layout_parts
from ._linear import Linear, LinearShape
from ._library import Error, Interrupted
from ._model import Model, Sequence

__version__ = "0.3.0"

__all__ = [
    "Artifact",
    "Checkpoint",
    "Error",
    "Interrupted",
    "Layer",
    "LayerShape",
    "Linear",
    "LinearShape",
    "Matrix",
    "Model",
    "Module",
    "Sequence",
    "StoredPart",
    "Tensor",
    "__version__",
    "command",
    "compress",
    "convert",
    "diff",
    "has_cuda",
    "inspect",
    "layout_parts",
    "lint",
    "open",
    "prune",
    "quantize",
    "repair",
    "stats",
    "validate",
    "version",
]
