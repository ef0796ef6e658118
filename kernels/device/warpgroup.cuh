#pragma once
#include <cstdint>

#include "kernels/device/tensor_map.h"

/// Functions for the warpgroups of a block on sm_90a: barriers in shared memory, registers, and the order of
/// wgmma.

namespace twofour::cuda {

inline constexpr int kWarpgroup = 128;

/// Initializes a barrier of a block that completes after `count` arrivals. Call fence_barriers and
/// synchronize afterwards.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at a barrier when all copies (copy_async16) that this thread has started are complete.
__device__ __forceinline__ void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at a barrier of another block of the cluster (cluster_address). The arrival is not ordered with
/// memory, because a release to the cluster is a fence over all memory.
__device__ __forceinline__ void arrive_at_other(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Copies a box of describe_boxes that begins at number `k` of row `row`. It goes to address `to` in each
/// block of the cluster whose bit in `blocks` is set. Its bytes are counted on the barrier at address
/// `barrier` in the same block.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& boxes, int k, int row,
                                         uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;"
      :
      : "r"(to), "l"(&boxes), "r"(k), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
/// Waits until the phase of parity `parity` is complete. The phase before the first counts as a phase of
/// parity 1.
__device__ __forceinline__ void wait_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}
/// Makes earlier writes to shared memory visible to wgmma. These are writes by this thread and writes that it
/// has seen.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Sets the number of registers of each thread of a warpgroup, a multiple of 8. All warps of the warpgroup
/// must call it.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Prevents the compiler from computing these values after begin_wgmma, because they would have to be ordered
/// again.
template <int kCount>
__device__ __forceinline__ void settle(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i]));
}

/// Uses, after the wait for a wgmma, the registers that the wgmma reads. Without this use, ptxas of CUDA 13.0
/// reuses them as soon as the instruction is issued. Nothing is stored: `never` is false, but the compiler
/// must not know it.
__device__ __forceinline__ void keep_until_here(bool never, const uint32_t (&a)[4]) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0;\n@p st.shared.v4.b32 [%1], {%1, %2, %3, %4}; }"
               :
               : "r"(static_cast<int>(never)), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

/// Orders writes of registers before the wgmmas that follow.
__device__ __forceinline__ void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes a group of wgmmas.
__device__ __forceinline__ void commit_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` groups of wgmmas are in progress.
template <int kPending>
__device__ __forceinline__ void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Describes the B operand to wgmma. B has rows of 128 bytes, 64 BF16 along K, and begins at a multiple of
/// 1024 bytes. 16-byte chunk c of row r is at place c ^ r % 8. The operand begins at chunk `chunk`. Source:
/// PTX ISA, matrix descriptor.
__device__ __forceinline__ uint64_t describe_rows(uint32_t shared, uint32_t chunk = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | (uint32_t{1} << 16 | (shared & 0x3FFFF) >> 4) + chunk;
}

}  // namespace twofour::cuda
