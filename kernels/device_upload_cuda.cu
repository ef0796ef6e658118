#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device_upload.h"

namespace twofour::cuda {

DeviceUpload::DeviceUpload(size_t bytes) : bytes_(bytes) {
  for (Buffer& buffer : buffers_) buffer.memory = PinnedMemory(bytes);
}

// Nobody copies from memory that is about to go.
DeviceUpload::~DeviceUpload() { cudaStreamSynchronize(stream_.get()); }

void DeviceUpload::copy(void* to, size_t bytes, const std::function<void(size_t, std::span<uint8_t>)>& fill) {
  for (size_t at = 0; at < bytes; at += bytes_) {
    const size_t count = std::min(bytes_, bytes - at);
    const Buffer& buffer = buffers_[next_];
    buffer.sent.wait();
    fill(at, {buffer.memory.data(), count});
    check_cuda(cudaMemcpyAsync(static_cast<uint8_t*>(to) + at, buffer.memory.data(), count,
                               cudaMemcpyHostToDevice, stream_.get()),
               "upload");
    buffer.sent.record(stream_);
    next_ ^= 1;
  }
}

void DeviceUpload::finish() { stream_.synchronize(); }

}  // namespace twofour::cuda
