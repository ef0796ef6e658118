#include <algorithm>

#include "kernels/cuda_launch.cuh"
#include "kernels/device_upload.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "upload";

}  // namespace

DeviceUpload::DeviceUpload(size_t bytes) : bytes_(bytes) {
  try {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhere);
    for (int i = 0; i < 2; ++i) {
      check_cuda(cudaHostAlloc(&buffers_[i], bytes, cudaHostAllocDefault), kWhere);
      cudaEvent_t event = nullptr;
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), kWhere);
      sent_[i] = event;
    }
  } catch (...) {
    release();
    throw;
  }
}

DeviceUpload::~DeviceUpload() { release(); }

void DeviceUpload::release() {
  if (stream_) cudaStreamSynchronize(stream_);
  for (int i = 0; i < 2; ++i) {
    if (sent_[i]) cudaEventDestroy(static_cast<cudaEvent_t>(sent_[i]));
    if (buffers_[i]) cudaFreeHost(buffers_[i]);
  }
  if (stream_) cudaStreamDestroy(stream_);
}

void DeviceUpload::copy(void* to, size_t bytes, const std::function<void(size_t, std::span<uint8_t>)>& fill) {
  for (size_t at = 0; at < bytes; at += bytes_) {
    const size_t count = std::min(bytes_, bytes - at);
    const auto event = static_cast<cudaEvent_t>(sent_[next_]);
    check_cuda(cudaEventSynchronize(event), kWhere);
    fill(at, {static_cast<uint8_t*>(buffers_[next_]), count});
    check_cuda(cudaMemcpyAsync(static_cast<uint8_t*>(to) + at, buffers_[next_], count, cudaMemcpyHostToDevice,
                               stream_),
               kWhere);
    check_cuda(cudaEventRecord(event, stream_), kWhere);
    next_ ^= 1;
  }
}

void DeviceUpload::finish() { check_cuda(cudaStreamSynchronize(stream_), kWhere); }

}  // namespace twofour::cuda
