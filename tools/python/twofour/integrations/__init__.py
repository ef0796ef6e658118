"""Artifacts in other programs: `twofour.integrations.transformers` and `twofour.integrations.vllm`."""
