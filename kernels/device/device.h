#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace twofour {

/// Where work is done.
enum class Device { cpu, cuda };
constexpr const char* device_name(Device device) { return device == Device::cuda ? "cuda" : "cpu"; }

/// Properties of a CUDA device.
struct CudaDevice {
  std::string name;
  int capability;  ///< 90 for sm_90
  int multiprocessors;
  uint64_t memory;    ///< bytes
  uint64_t l2_cache;  ///< bytes
};

/// The CUDA device that is current for this thread, the first unless another was chosen; empty if the build
/// has no CUDA or the machine no usable device.
std::optional<CudaDevice> cuda_device();

/// Why cuda_device() is empty, as text: "built without CUDA", "no driver", ...
std::string no_cuda_reason();

/// CUDA devices of this machine; 0 if cuda_device() is empty.
int cuda_device_count();

/// The index of the CUDA device that is current for this thread; -1 if there is none.
int current_cuda_device();

/// Makes a CUDA device current for this thread while it lives.
class CudaDeviceScope {
 public:
  /// Below 0: the current device stays. Throws Error if there is no such device.
  explicit CudaDeviceScope(int index);
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;
  ~CudaDeviceScope();

 private:
  int before_ = -1;  ///< the device that was current; -1: it still is
};

}  // namespace twofour
