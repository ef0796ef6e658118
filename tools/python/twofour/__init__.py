"""Converts, checks and proves quantized LLM checkpoints, NVFP4 above all."""

__version__ = "0.2.0"

__all__ = ["__version__"]
