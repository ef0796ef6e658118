#pragma once

// This is the only file that tests which compiler runs.

/// Marks a function that both the host and CUDA kernels call.
#ifdef __CUDACC__
#define TWOFOUR_HD __host__ __device__
#else
#define TWOFOUR_HD
#endif

/// Control loops in such a function. Put TWOFOUR_UNROLL before a short loop, so that a kernel holds its
/// numbers in registers. Put TWOFOUR_LOOP before a loop that a kernel must not unroll.
#ifdef __CUDA_ARCH__
#define TWOFOUR_UNROLL _Pragma("unroll")
#define TWOFOUR_LOOP _Pragma("unroll 1")
#else
#define TWOFOUR_UNROLL
#define TWOFOUR_LOOP
#endif
