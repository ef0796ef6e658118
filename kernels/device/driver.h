#pragma once
#include <cuda_runtime_api.h>

namespace twofour::cuda {

/// Finds a function of the CUDA driver. The driver is not linked, because many machines lack it. Returns null
/// if the driver is older than CUDA `version` (12040 means 12.4).
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why{};
  if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &why) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace twofour::cuda
