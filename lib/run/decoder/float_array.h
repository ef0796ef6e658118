#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/device/device_memory.h"

namespace twofour {

/// An array of float32 in memory of the host, or of the current CUDA device. It grows and does not shrink.
class FloatArray {
 public:
  /// With a stream, the array is on the device, and copies are put on the stream.
  explicit FloatArray(const cuda::DeviceStream* stream = nullptr) : stream_(stream) {}

  /// Makes room for `count` numbers, which are not initialized.
  float* resize(size_t count);
  float* data() const { return stream_ != nullptr ? device_.as<float>() : host_.get(); }
  size_t size() const { return size_; }
  bool on_device() const { return stream_ != nullptr; }

  /// Resizes, and copies numbers from the array's side: from the host, or from the device.
  void assign(const float* from, size_t count);
  /// Resizes, and copies numbers from the host. Waits for the copy.
  void assign_from_host(std::span<const float> from);
  /// Copies numbers to `to`, which is on the array's side.
  void copy_to(size_t first, size_t count, float* to) const;
  /// Copies numbers to the host. Waits for the copy.
  void copy_to_host(size_t first, std::span<float> to) const;

 private:
  const cuda::DeviceStream* stream_;
  std::unique_ptr<float[]> host_;
  cuda::DeviceMemory device_;
  size_t size_ = 0, room_ = 0;
};

/// Copies numbers from host to host, or from device to device on `stream` if it is not null.
void copy_floats(const float* from, size_t count, float* to, const cuda::DeviceStream* stream);

}  // namespace twofour
