"""What torch modules over stored tensors share: a name for operators, and bytes that keep their types."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Optional

import torch

#: torch's types of safetensors' names, and names of types that libtwofour takes as activations.
DTYPES = {"U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

#: Living modules by the key that operators have. A key is the module's name, so that a compiled graph means the same
#: module in another process, with a number where several of that name are alive.
_modules: weakref.WeakValueDictionary[str, StoredModule] = weakref.WeakValueDictionary()


class StoredModule(torch.nn.Module):  # type: ignore[misc]
    """A module over parameters that hold weights as they are stored."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._forget()

    def _forget(self) -> None:
        """Nothing is loaded, and no operator knows the module yet."""
        self._loaded: Optional[Any] = None
        self._places: tuple[Any, ...] = ()
        self.key, number = self._name, 1
        while self.key in _modules:
            number += 1
            self.key = f"{self._name}#{number}"
        _modules[self.key] = self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_loaded", "_places", "key")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> StoredModule:
        # Bytes go to other devices, never to other types; a bias is no such bytes
        bias = self._parameters.pop("bias", None)
        super()._apply(lambda t: t if (moved := fn(t)).device == t.device else t.to(moved.device), recurse)
        if bias is not None:
            self.add("bias", fn(bias.data))
        return self

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """A parameter that is not trained."""
        self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def loaded(self, load: Callable[[str], Any]) -> Any:
        """What `load(device)` made of the parameters where they are now: it is called again when they have moved."""
        places = tuple(p.data_ptr() for name, p in self.named_parameters() if name != "bias")
        if self._loaded is None or places != self._places:
            device = next(iter(self.parameters())).device
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            self._loaded = load("cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}")
            self._places = places
        return self._loaded


def module_of(key: str) -> Any:
    """The living module of a key."""
    return _modules[key]


def workspace_of(size: int, device: torch.device) -> tuple[torch.Tensor, int, int]:
    """Memory for one call, its pointer, and the stream that torch works on there."""
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return workspace, workspace.data_ptr() if size else 0, stream
