#pragma once
#include <cstdint>

/// What warpgroups of sm_90a share a block by: barriers in shared memory, registers, the order of wgmma.

namespace twofour::cuda {

inline constexpr int kWarpgroup = 128;

/// A barrier of a block that `count` arrivals complete; call fence_barriers and synchronize afterwards.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives when all copies (copy_async16) of this thread so far have landed.
__device__ __forceinline__ void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits until the phase of parity `parity` is complete; the phase before the first counts as that of
/// parity 1.
__device__ __forceinline__ void wait_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}
/// What this thread wrote, or another before it, to shared memory is there for wgmma.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Registers of each thread of a warpgroup from here on, a multiple of 8. All warps of it call it.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Keeps the compiler from computing these behind begin_wgmma, which would have to order them again.
template <int kCount>
__device__ __forceinline__ void settle(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i]));
}

/// Orders registers before the wgmmas that follow.
__device__ __forceinline__ void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes a group of wgmmas.
__device__ __forceinline__ void commit_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Describes B for wgmma: rows of 128 bytes, 64 BF16 along K, from a multiple of 1024 bytes on, 16-byte chunk
/// c of row r at place c ^ r % 8; from chunk `chunk` on. Source: PTX ISA, matrix descriptor.
__device__ __forceinline__ uint64_t describe_rows(uint32_t shared, uint32_t chunk = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | (uint32_t{1} << 16 | (shared & 0x3FFFF) >> 4) + chunk;
}

}  // namespace twofour::cuda
