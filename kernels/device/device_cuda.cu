#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/device/device.h"
#include "kernels/device/driver.h"
#include "kernels/device/launch.cuh"

namespace twofour {

std::optional<CudaDevice> cuda_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return std::nullopt;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, current_cuda_device()) != cudaSuccess) return std::nullopt;
  return CudaDevice{properties.name, 10 * properties.major + properties.minor, properties.multiProcessorCount,
                    properties.totalGlobalMem, static_cast<uint64_t>(properties.l2CacheSize)};
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int current_cuda_device() {
  int device = 0;
  return cuda_device_count() > 0 && cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

CudaDeviceScope::CudaDeviceScope(int index) {
  if (index < 0) return;
  int current = 0;
  cuda::check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (index == current) return;
  cuda::check_cuda(cudaSetDevice(index), "cudaSetDevice");
  before_ = current;
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

std::string no_cuda_reason() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no CUDA driver";
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

namespace cuda {

int multiprocessors(cudaStream_t stream) {
  static auto* const context_of =
      driver_function<decltype(cuStreamGetGreenCtx)>("cuStreamGetGreenCtx", 12040);
  static auto* const resource_of =
      driver_function<decltype(cuGreenCtxGetDevResource)>("cuGreenCtxGetDevResource", 12040);
  CUgreenCtx context = nullptr;
  CUdevResource resource{};
  const bool green = context_of && resource_of && context_of(stream, &context) == CUDA_SUCCESS && context &&
                     resource_of(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS;
  return green ? static_cast<int>(resource.sm.smCount) : multiprocessors();
}

}  // namespace cuda
}  // namespace twofour
