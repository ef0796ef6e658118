#pragma once

// The only place that asks which compiler runs.

/// Marks a function that both the host and a CUDA kernel call.
#ifdef __CUDACC__
#define TWOFOUR_HD __host__ __device__
#else
#define TWOFOUR_HD
#endif

/// In such a function: before a loop over few numbers, which a kernel keeps in registers then, and before one
/// that it must not unroll.
#ifdef __CUDA_ARCH__
#define TWOFOUR_UNROLL _Pragma("unroll")
#define TWOFOUR_LOOP _Pragma("unroll 1")
#else
#define TWOFOUR_UNROLL
#define TWOFOUR_LOOP
#endif
