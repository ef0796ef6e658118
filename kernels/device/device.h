#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace twofour {

/// The processor that does the work.
enum class Device { cpu, cuda };
constexpr const char* device_name(Device device) { return device == Device::cuda ? "cuda" : "cpu"; }

/// Properties of a CUDA device.
struct CudaDevice {
  std::string name;
  int capability;  ///< 90 for sm_90
  int multiprocessors;
  uint64_t memory;    ///< device memory in bytes
  uint64_t l2_cache;  ///< size of the L2 cache in bytes
};

/// The CUDA device that is current for this thread, by default the first device. Empty if the build has no
/// CUDA or the machine has no usable device.
std::optional<CudaDevice> cuda_device();

/// The reason why cuda_device() is empty: "built without CUDA", "no driver", ...
std::string no_cuda_reason();

/// The number of CUDA devices of this machine. 0 if cuda_device() is empty.
int cuda_device_count();

/// The index of the CUDA device that is current for this thread; -1 if there is none.
int current_cuda_device();

/// Makes a CUDA device current for this thread during the lifetime of the object.
class CudaDeviceScope {
 public:
  /// Makes the device with this index current. If `index` is below 0, the current device stays. Throws Error
  /// if there is no device with this index.
  explicit CudaDeviceScope(int index);
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;
  ~CudaDeviceScope();

 private:
  int before_ = -1;  ///< the device that was current before; -1 if it was not changed
};

}  // namespace twofour
