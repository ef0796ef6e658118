#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/device/stream.h"

/// Instructions for which CUDA C++ has no name, and functions that use them to load, store and scale
/// activations. All instructions exist on sm_90 and later.

namespace twofour::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 bytes from global to shared memory, bypassing the L1 cache.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// Copies data that is not read again soon. The L2 cache evicts it first.
__device__ __forceinline__ void copy_async16_once(uint32_t to, const void* from) {
  constexpr uint64_t kEvictFirst = 0x12F0000000000000u;  // createpolicy.fractional.L2::evict_first 1.0
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(kEvictFirst)
               : "memory");
}
__device__ __forceinline__ void copy_async4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/// Copies the first `bytes` bytes of 16. The rest becomes zero.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
/// Copies like copy_async16, and makes the L2 cache fetch 256 bytes at once. For sequential reads.
__device__ __forceinline__ void copy_async16_ahead(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async4(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Loads 16 bytes of shared memory. The compiler does not move the load after later stores.
__device__ __forceinline__ uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
/// Stores `v` if `here` is true, without a branch. `v` is computed in any case.
__device__ __forceinline__ void store_if(bool here, void* to, uint32_t v) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2; }"
               :
               : "r"(static_cast<int>(here)), "l"(to), "r"(v)
               : "memory");
}
__device__ __forceinline__ void store_if(bool here, void* to, uint2 v) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3}; }"
               :
               : "r"(static_cast<int>(here)), "l"(to), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ __forceinline__ void store_if(bool here, void* to, float2 v) {
  store_if(here, to, uint2{__float_as_uint(v.x), __float_as_uint(v.y)});
}
__device__ __forceinline__ void store_if(bool here, void* to, float4 v) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0;\n@p st.global.v4.f32 [%1], {%2, %3, %4, %5}; }"
               :
               : "r"(static_cast<int>(here)), "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
/// Starts to fetch 128 bytes into the L2 cache.
__device__ __forceinline__ void fetch_ahead(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `kPending` groups of this thread's copies are in progress.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The address in the shared memory of block `rank` of the cluster that corresponds to an address in this
/// block.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ __forceinline__ int load_cluster(uint32_t address) {
  int value;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
/// Stores into the shared memory of a block of the cluster, and counts the bytes on the barrier of that
/// block. This avoids a release by the cluster's own barrier, which is a fence over all memory.
__device__ __forceinline__ void store_cluster(uint32_t to, const float4& v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
               :
               : "r"(to), "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
                 "r"(__float_as_uint(v.w)), "r"(barrier)
               : "memory");
}
/// Begins a barrier at which one thread arrives with the number of bytes to wait for (expect_bytes). It is
/// visible to the blocks of the cluster that synchronize afterwards.
__device__ __forceinline__ void begin_barrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_barrier(uint32_t barrier, int phase) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }"
      :
      : "r"(barrier), "r"(phase)
      : "memory");
}
/// Synchronizes all threads of a cluster. It orders only begin_barrier.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Synchronizes all threads of a cluster and orders all memory, which takes long.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Stores for all blocks. A thread whose load sees the store also sees all earlier stores.
__device__ __forceinline__ void store_release(int32_t* to, int32_t value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ int32_t load_acquire(const int32_t* from) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// Adds a value and returns the old value. The addition comes after all writes that the thread's block has
/// made or seen. Afterwards, this thread sees the writes that other blocks made before their additions.
__device__ __forceinline__ int32_t add_acquire_release(int32_t* to, int32_t value) {
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

/// Stores and loads of 64-bit words. Other blocks see each word as a whole, but in no order relative to other
/// memory.
__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// Waits for the preceding kernels and their writes.
__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Allows the next kernel to start.
__device__ __forceinline__ void release_successor() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Converts two E4M3 numbers to two halves, exactly. The low byte comes first.
__device__ __forceinline__ uint32_t half2_of_e4m3(uint32_t pair) {
  uint32_t r;
  asm("{ .reg .b16 lo; mov.b32 {lo, _}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(r) : "r"(pair));
  return r;
}
/// Converts four E4M3 numbers to two pairs of halves, exactly. The low byte comes first.
__device__ __forceinline__ uint2 halves_of_e4m3(uint32_t four) {
  uint2 r;
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi; }"
      : "=r"(r.x), "=r"(r.y)
      : "r"(four));
  return r;
}
/// Multiply both halves of `a` by the low or by the high half of `b`.
__device__ __forceinline__ uint32_t multiply_low(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {l, l}; mul.rn.f16x2 %0, %1, t; }"
      : "=r"(r)
      : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t multiply_high(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {h, h}; mul.rn.f16x2 %0, %1, t; }"
      : "=r"(r)
      : "r"(a), "r"(b));
  return r;
}
/// Rounds two floats to halves, to nearest even. `low` goes to the low 16 bits.
__device__ __forceinline__ uint32_t half2_of(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ uint32_t bfloat2_of(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// A power of two that scales numbers into the range of FP16.
struct HalfScale {
  float scale;   ///< scales the largest magnitude to 2^14
  float factor;  ///< 2^14 / scale: undoes `scale` and the 2^-14 of decode4 and decode8
};
/// Computes a HalfScale. `largest` is the largest magnitude, as the bits of a float.
__device__ __forceinline__ HalfScale half_scale(uint32_t largest) {
  const uint32_t exponent = max(largest >> 23, 15u);
  return {__uint_as_float((268u - exponent) << 23), __uint_as_float(exponent << 23)};
}

/// The sum and the largest of the values of a warp's lanes. All lanes get the result.
template <class T>
__device__ __forceinline__ T sum_of_warp(T x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}
__device__ __forceinline__ float largest_of_warp(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}

/// The largest of the values of a block's threads. All threads get the result. Call it only once in a kernel.
/// Floats are passed as bits, because the bits of magnitudes sort like the magnitudes.
template <int kThreads>
__device__ __forceinline__ uint32_t block_largest(uint32_t mine) {
  __shared__ uint32_t of_warp[kThreads / 32];
  uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (const uint32_t other : of_warp) largest = max(largest, other);
  return largest;
}

/// Loads adjacent numbers i and i + 1 of an array of activations. i is even.
__device__ __forceinline__ float2 load_pair(const void* x, Float type, int64_t i) {
  if (type == Float::f32) return *reinterpret_cast<const float2*>(static_cast<const float*>(x) + i);
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(x) + i);
  if (type == Float::bf16) return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)};
  const __half2 h = *reinterpret_cast<const __half2*>(&bits);
  return {__low2float(h), __high2float(h)};
}

/// Loads eight adjacent numbers from i on. i is a multiple of 8. `wide` is true if x is aligned to 16 bytes.
__device__ __forceinline__ void load_eight(const void* x, Float type, int64_t i, bool wide, float* to) {
  if (wide && type != Float::f32) {
    const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x) + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = load_pair(&bits, type, 2 * j);
      to[2 * j] = pair.x, to[2 * j + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float2 pair = load_pair(x, type, i + j);
    to[j] = pair.x, to[j + 1] = pair.y;
  }
}

__device__ __forceinline__ void store_float(void* out, Float type, int64_t i, float value) {
  if (type == Float::f32) {
    static_cast<float*>(out)[i] = value;
  } else if (type == Float::bf16) {
    static_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(out)[i] = __float2half_rn(value);
  }
}

}  // namespace twofour::cuda
