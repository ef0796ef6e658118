"""libtwofour.so with the CUDA kernels, which the module twofour loads where this is installed."""
