#pragma once

// The only file that tests which compiler runs.

/// Marks a function that both the host and a CUDA kernel call.
#ifdef __CUDACC__
#define TWOFOUR_HD __host__ __device__
#else
#define TWOFOUR_HD
#endif

/// In such a function: TWOFOUR_UNROLL precedes a short loop, so that a kernel holds its numbers in registers;
/// TWOFOUR_LOOP precedes a loop that a kernel must not unroll.
#ifdef __CUDA_ARCH__
#define TWOFOUR_UNROLL _Pragma("unroll")
#define TWOFOUR_LOOP _Pragma("unroll 1")
#else
#define TWOFOUR_UNROLL
#define TWOFOUR_LOOP
#endif
