#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/device/device_memory.h"

namespace twofour::cuda {

/// Copies bytes to device memory through two page-locked buffers: while one travels, the other is filled.
/// Throws Error with CUDA's words.
class DeviceUpload {
 public:
  /// Two buffers of `bytes` each.
  explicit DeviceUpload(size_t bytes);
  DeviceUpload(const DeviceUpload&) = delete;
  DeviceUpload& operator=(const DeviceUpload&) = delete;
  ~DeviceUpload();

  /// `fill` is called with offsets from 0 to `bytes`, in order, and a buffer to fill for each; may throw.
  void copy(void* to, size_t bytes, const std::function<void(size_t, std::span<uint8_t>)>& fill);
  /// Waits until all is there.
  void finish();

 private:
  size_t bytes_;
  struct Buffer {
    PinnedMemory memory;
    DeviceEvent sent;
  } buffers_[2];
  DeviceStream stream_;
  int next_ = 0;
};

}  // namespace twofour::cuda
