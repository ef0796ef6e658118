#include <cuda.h>

#include "kernels/device/launch.cuh"

namespace twofour::cuda {

namespace {

/// A function of the driver, which is not linked with; nullptr where it is older than that.
template <class Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12040, cudaEnableDefault, &why) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

int multiprocessors(cudaStream_t stream) {
  static auto* const context_of = driver<decltype(cuStreamGetGreenCtx)>("cuStreamGetGreenCtx");
  static auto* const resource_of = driver<decltype(cuGreenCtxGetDevResource)>("cuGreenCtxGetDevResource");
  CUgreenCtx context = nullptr;
  CUdevResource resource{};
  const bool green = context_of && resource_of && context_of(stream, &context) == CUDA_SUCCESS && context &&
                     resource_of(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS;
  return green ? static_cast<int>(resource.sm.smCount) : multiprocessors();
}

}  // namespace twofour::cuda
