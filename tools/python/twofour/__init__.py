"""Converts, checks and proves quantized LLM checkpoints, NVFP4 above all.

    import twofour

    twofour.convert("checkpoint", "artifact", to="v7")
    assert twofour.lint("artifact")["sound"]
    weights = twofour.open("artifact")["model.layers.0.mlp.down_proj"][:4, :16]   # float32, any format

Commands are functions that return what `twofour --json` prints (types: twofour.documents), without starting a process.
`open` reads values and stored bytes, `Artifact` runs layers on arrays of torch, CuPy or NumPy, `Model` whole models,
`Tokenizer` takes texts apart. What fails raises `Error`, of which NotFoundError, ExistsError and ArgumentError are also
FileNotFoundError, FileExistsError and ValueError. twofour.integrations has transformers and vLLM.
"""

from . import _functions, documents
from ._checkpoint import Checkpoint, Matrix, Module, Tensor, open
from ._choice import choose_formats
from ._commands import command, has_cuda, version
from ._errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    Error,
    ExistsError,
    Interrupted,
    NameNotFoundError,
    NotFoundError,
)
from ._functions import *  # noqa: F403
from ._layer import Artifact, Layer, LayerShape, StoredPart, layout_parts
from ._linear import Linear, LinearShape
from ._model import Model, Sequence
from ._tokenizer import Tokenizer

__version__ = "0.3.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Artifact",
    "Checkpoint",
    "ClosedError",
    "Error",
    "ExistsError",
    "Interrupted",
    "Layer",
    "LayerShape",
    "Linear",
    "LinearShape",
    "Matrix",
    "Model",
    "Module",
    "NameNotFoundError",
    "NotFoundError",
    "Sequence",
    "StoredPart",
    "Tensor",
    "Tokenizer",
    "__version__",
    "choose_formats",
    "command",
    "documents",
    "has_cuda",
    "layout_parts",
    "open",
    "version",
]
__all__ += _functions.__all__

# Public names are shown as twofour.Error, not as the file that has them.
for _name in __all__:
    if hasattr(globals()[_name], "__qualname__"):
        globals()[_name].__module__ = __name__
del _name
