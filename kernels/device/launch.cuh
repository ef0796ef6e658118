#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "formats/error.h"

namespace twofour::cuda {

/// Throws Error with CUDA's message unless `error` is cudaSuccess.
inline void check_cuda(cudaError_t error, const char* where) {
  if (error == cudaSuccess) return;
  throw Error(std::string(where) + ": CUDA: " + cudaGetErrorString(error));
}

/// Throws Error unless `holds` is true.
inline void expect(bool holds, const char* where, const std::string& expected, const std::string& found) {
  if (holds) return;
  std::string message = where;
  message.append(": expected ").append(expected).append(", found ").append(found);
  throw Error(message);
}

/// The parts of a workspace begin at multiples of this number of bytes.
inline constexpr int64_t kWorkspaceAlignment = 256;

constexpr int64_t align_up(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

/// Throws Error unless a workspace has at least `wanted` bytes and is aligned.
inline void expect_workspace(const char* where, const void* workspace, size_t bytes, int64_t wanted) {
  expect(bytes >= static_cast<size_t>(wanted) &&
             reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment == 0,
         where,
         std::to_string(wanted) + " bytes of workspace, aligned to " + std::to_string(kWorkspaceAlignment),
         std::to_string(bytes));
}

/// Throws Error unless an array is aligned to `bytes`.
inline void expect_aligned(const char* where, const char* what, const void* array, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(array);
  expect(address % static_cast<uintptr_t>(bytes) == 0, where,
         what + (" on a multiple of " + std::to_string(bytes)) + " bytes", std::to_string(address));
}

/// An attribute of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

/// The number of multiprocessors that work on a stream can use. It is smaller than the device's if the stream
/// belongs to a green context.
int multiprocessors(cudaStream_t stream);

/// The shared memory that one block can have, in bytes.
inline int shared_memory_limit() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// The number of blocks of `threads` threads for `items` items.
inline dim3 blocks_for(int64_t items, int threads) {
  return dim3(static_cast<unsigned>((items + threads - 1) / threads));
}

struct Launch {
  dim3 grid;
  int threads;
  size_t shared = 0;
  int cluster = 1;       ///< number of blocks of a cluster, along x
  bool overlap = false;  ///< may start before the preceding kernel ends; it waits on the device
  bool at_once = false;  ///< blocks wait for each other, so none starts unless all fit
};

/// Starts a kernel and returns CUDA's error. A kernel with more than 48 KiB of dynamic shared memory must
/// have no static shared memory.
template <class... Parameters, class... Arguments>
cudaError_t start(cudaStream_t stream, const Launch& how, void (*kernel)(Parameters...),
                  Arguments... arguments) {
  if (how.shared > (48u << 10)) {
    // Set the device's limit instead of this launch's size, because another thread may launch the kernel with
    // more memory at the same time.
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared_memory_limit());
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (how.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(how.cluster);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (how.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  if (how.at_once) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count].val.cooperative = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = dim3(static_cast<unsigned>(how.threads));
  config.dynamicSmemBytes = how.shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

/// Starts a kernel. Throws Error with `where` and CUDA's message.
template <class... Parameters, class... Arguments>
void launch(const char* where, cudaStream_t stream, const Launch& how, void (*kernel)(Parameters...),
            Arguments... arguments) {
  check_cuda(start(stream, how, kernel, arguments...), where);
}

}  // namespace twofour::cuda
