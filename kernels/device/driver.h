#pragma once
#include <cuda_runtime_api.h>

namespace twofour::cuda {

/// A function of the driver, which is not linked, since many machines lack it; nullptr if the driver is older
/// than CUDA `version` (12040 is 12.4).
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
