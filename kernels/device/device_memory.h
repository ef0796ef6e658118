#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/stream.h"

namespace twofour::cuda {

class DeviceStream;

void free_device_memory(void* data) noexcept;
void free_pinned_memory(void* data) noexcept;

/// Memory with one owner. `kFree` frees it.
template <void (*kFree)(void*) noexcept>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(OwnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedMemory() { kFree(data_); }
  size_t bytes() const { return bytes_; }

 protected:
  explicit OwnedMemory(size_t bytes) : bytes_(bytes) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Memory of the current device. Every function throws Error with CUDA's message.
class DeviceMemory : public OwnedMemory<free_device_memory> {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
  template <class T>
  explicit DeviceMemory(const std::vector<T>& values) : DeviceMemory(values.size() * sizeof(T)) {
    upload(values.data(), bytes_);
  }

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

  /// Allocates at least `bytes`. If the memory grows, its contents are lost.
  void reserve(size_t bytes) {
    if (bytes_ >= bytes) return;
    { const DeviceMemory freed = std::move(*this); }
    *this = DeviceMemory(bytes);
  }

  void fill(int byte);  ///< on the default stream; waits until it is done
  void upload(const void* from, size_t bytes, size_t offset = 0);  ///< waits until the copy is complete
  template <class T>
  std::vector<T> download() const {
    std::vector<T> values(bytes_ / sizeof(T));
    read(values.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  void read(void* to, size_t bytes) const;
};

/// The number of free bytes on the current device.
uint64_t available_device_bytes();

/// Advice for errors about a device without free memory. It is the end of the message.
inline constexpr const char* kDeviceMemoryAdvice = ": end what else is on the device, or compute on the CPU";

/// Copies from memory of the current device on the default stream, and waits.
void copy_to_host(const void* from, void* to, size_t bytes);

/// Copies from device memory after the work on a stream, and waits.
void copy_to_host(const void* from, void* to, size_t bytes, const DeviceStream& stream);
void copy_to_device(const void* from, void* to, size_t bytes, const DeviceStream& stream);
/// Functions that copy from device to device, and that write zeros. They do not wait.
void move_device_bytes(const void* from, void* to, size_t bytes, Stream stream);
void clear_device_bytes(void* to, size_t bytes, Stream stream);

/// Page-locked host memory. Copies between it and the device run while the program continues.
class PinnedMemory : public OwnedMemory<free_pinned_memory> {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
};

/// A CUDA stream for which the default stream does not wait.
class DeviceStream {
 public:
  DeviceStream();
  explicit DeviceStream(Stream made) : stream_(made) {}  ///< takes ownership of the stream `made`
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream();
  Stream get() const { return stream_; }
  void synchronize() const;

 private:
  Stream stream_ = nullptr;
};

/// A point in the work of a stream.
class DeviceEvent {
 public:
  DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  ~DeviceEvent();
  void record(const DeviceStream& stream) const;
  void wait() const;  ///< on the host; returns at once if it was never recorded

 private:
  void* event_ = nullptr;  ///< cudaEvent_t
};

/// Copies bytes to device memory through two page-locked buffers. One buffer is filled while the other is
/// copied. Throws Error with CUDA's message.
class DeviceUpload {
 public:
  /// Allocates two buffers of `bytes` each.
  explicit DeviceUpload(size_t bytes);
  DeviceUpload(const DeviceUpload&) = delete;
  DeviceUpload& operator=(const DeviceUpload&) = delete;
  ~DeviceUpload();

  /// Copies `bytes` to `to`. Calls `fill` in order with offsets from 0 to `bytes`, and with a buffer to fill
  /// for each offset. `fill` may throw.
  void copy(void* to, size_t bytes, const std::function<void(size_t, std::span<uint8_t>)>& fill);
  /// Waits until all copies are complete.
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

/// The operations that `work` puts on a stream. They are recorded once, and can be replayed.
class DeviceGraph {
 public:
  DeviceGraph(const DeviceStream& stream, const std::function<void()>& work);
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  ~DeviceGraph();
  void replay(const DeviceStream& stream) const;

 private:
  void* graph_ = nullptr;  ///< cudaGraphExec_t
};

/// Copies from device memory to device memory on a stream, with a kernel. Measurements use it as their
/// baseline. `bytes` is a multiple of 16.
void copy_device(void* to, const void* from, size_t bytes, Stream stream);

/// The time in seconds that `work` takes on the device, from events on the stream before and after it. Waits
/// for the end of the work.
double device_seconds(const DeviceStream& stream, const std::function<void()>& work);

}  // namespace twofour::cuda
