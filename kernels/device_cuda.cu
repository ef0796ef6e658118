#include <cuda_runtime.h>

#include "kernels/device/device.h"

namespace twofour {

std::optional<CudaDevice> cuda_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return std::nullopt;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return std::nullopt;
  return CudaDevice{properties.name, 10 * properties.major + properties.minor, properties.multiProcessorCount,
                    properties.totalGlobalMem, static_cast<uint64_t>(properties.l2CacheSize)};
}

std::string no_cuda_reason() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no CUDA driver";
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

}  // namespace twofour
