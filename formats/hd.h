#pragma once

/// Marks a function that both the host and a CUDA kernel call. The only place that asks which compiler runs.
#ifdef __CUDACC__
#define TWOFOUR_HD __host__ __device__
#else
#define TWOFOUR_HD
#endif
