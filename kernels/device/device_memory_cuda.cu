#include <algorithm>

#include "kernels/device/device_memory.h"
#include "kernels/device/launch.cuh"

namespace twofour::cuda {
namespace {

__global__ void __launch_bounds__(256) copy_kernel(uint4* to, const uint4* from, int64_t count) {
  const int64_t first = blockIdx.x * int64_t{1024} + threadIdx.x;
  uint4 values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) values[i] = __ldcs(from + first + i * 256);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) __stcs(to + first + i * 256, values[i]);
}

}  // namespace

void free_device_memory(void* data) noexcept { cudaFree(data); }
void free_pinned_memory(void* data) noexcept { cudaFreeHost(data); }

DeviceMemory::DeviceMemory(size_t bytes) : OwnedMemory(bytes) {
  if (bytes == 0) return;
  const cudaError_t error = cudaMalloc(&data_, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw Error("device memory: expected " + std::to_string(bytes) + " bytes, found " +
                std::to_string(available_device_bytes()) + " free" + kDeviceMemoryAdvice);
  }
  check_cuda(error, "device memory");
}

void DeviceMemory::fill(int byte) {
  check_cuda(cudaMemset(data_, byte, bytes_), "device memory");
  check_cuda(cudaDeviceSynchronize(), "device memory");
}

void DeviceMemory::upload(const void* from, size_t bytes, size_t offset) {
  expect(offset <= bytes_ && bytes <= bytes_ - offset, "device memory",
         std::to_string(bytes_) + " bytes at most", std::to_string(bytes));
  check_cuda(cudaMemcpy(static_cast<char*>(data_) + offset, from, bytes, cudaMemcpyHostToDevice),
             "device memory");
  // For pageable memory, cudaMemcpy may return before the last bytes are copied.
  check_cuda(cudaStreamSynchronize(nullptr), "device memory");
}

void DeviceMemory::read(void* to, size_t bytes) const { copy_to_host(data_, to, bytes); }

void copy_to_host(const void* from, void* to, size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "device memory");
}

uint64_t available_device_bytes() {
  size_t free = 0, all = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &all);
  if (error == cudaErrorMemoryAllocation)  // CUDA itself does not find enough memory
    throw Error(std::string("device memory: CUDA: ") + cudaGetErrorString(error) + kDeviceMemoryAdvice);
  check_cuda(error, "device memory");
  return free;
}

void copy_to_host(const void* from, void* to, size_t bytes, const DeviceStream& stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream.get()), "device memory");
  stream.synchronize();
}

void copy_to_device(const void* from, void* to, size_t bytes, const DeviceStream& stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()), "device memory");
  stream.synchronize();
}

void move_device_bytes(const void* from, void* to, size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "device memory");
}

void clear_device_bytes(void* to, size_t bytes, Stream stream) {
  check_cuda(cudaMemsetAsync(to, 0, bytes, stream), "device memory");
}

PinnedMemory::PinnedMemory(size_t bytes) : OwnedMemory(bytes) {
  if (bytes > 0) check_cuda(cudaMallocHost(&data_, bytes), "page-locked memory");
}

DeviceStream::DeviceStream() {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
}
DeviceStream::~DeviceStream() { cudaStreamDestroy(stream_); }
void DeviceStream::synchronize() const { check_cuda(cudaStreamSynchronize(stream_), "stream"); }

DeviceEvent::DeviceEvent() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  event_ = event;
}
DeviceEvent::~DeviceEvent() { cudaEventDestroy(static_cast<cudaEvent_t>(event_)); }
void DeviceEvent::record(const DeviceStream& stream) const {
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream.get()), "event");
}
void DeviceEvent::wait() const {
  check_cuda(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)), "event");
}

DeviceUpload::DeviceUpload(size_t bytes) : bytes_(bytes) {
  for (Buffer& buffer : buffers_) buffer.memory = PinnedMemory(bytes);
}

// Waits, so that no copy reads memory that was freed.
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

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<void()>& work) {
  check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "graph");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream.get(), &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream.get(), &graph), "graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(error, "graph");
  graph_ = executable;
}
DeviceGraph::~DeviceGraph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_)); }
void DeviceGraph::replay(const DeviceStream& stream) const {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream.get()), "graph");
}

void copy_device(void* to, const void* from, size_t bytes, Stream stream) {
  expect(bytes % 16 == 0, "copy", "a multiple of 16 bytes", std::to_string(bytes));
  launch("copy", stream, {dim3(static_cast<unsigned>((bytes / 16 + 1023) / 1024)), 256}, copy_kernel,
         static_cast<uint4*>(to), static_cast<const uint4*>(from), static_cast<int64_t>(bytes / 16));
}

double device_seconds(const DeviceStream& stream, const std::function<void()>& work) {
  struct Event {
    cudaEvent_t event = nullptr;
    Event() { check_cuda(cudaEventCreate(&event), "event"); }
    ~Event() { cudaEventDestroy(event); }
  } begin, end;
  check_cuda(cudaEventRecord(begin.event, stream.get()), "event");
  work();
  check_cuda(cudaEventRecord(end.event, stream.get()), "event");
  check_cuda(cudaEventSynchronize(end.event), "event");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "event");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace twofour::cuda
