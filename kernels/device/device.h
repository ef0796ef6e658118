#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace twofour {

/// Where work is done.
enum class Device { cpu, cuda };
constexpr const char* device_name(Device device) { return device == Device::cuda ? "cuda" : "cpu"; }

/// What is known of a CUDA device.
struct CudaDevice {
  std::string name;
  int capability;  ///< 90 for sm_90
  int multiprocessors;
  uint64_t memory;    ///< bytes
  uint64_t l2_cache;  ///< bytes
};

/// The first CUDA device; empty where this build has no CUDA or the machine no usable device.
std::optional<CudaDevice> cuda_device();

/// Why cuda_device() is empty, in words: "built without CUDA", "no driver", ...
std::string no_cuda_reason();

}  // namespace twofour
