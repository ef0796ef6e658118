#include "lib/run/decoder/float_array.h"

#include <algorithm>

namespace twofour {

void copy_floats(const float* from, size_t count, float* to, const cuda::DeviceStream* stream) {
  if (stream == nullptr) {
    std::copy_n(from, count, to);
  } else if (count > 0) {
    cuda::move_device_bytes(from, to, count * sizeof(float), stream->get());
  }
}

float* FloatArray::resize(size_t count) {
  if (count > room_) {
    if (on_device()) {
      stream_->synchronize();
      device_ = {};
      device_ = cuda::DeviceMemory(count * sizeof(float));
    } else {
      host_.reset();
      host_ = std::make_unique_for_overwrite<float[]>(count);
    }
    room_ = count;
  }
  size_ = count;
  return data();
}

void FloatArray::assign(const float* from, size_t count) { copy_floats(from, count, resize(count), stream_); }

void FloatArray::assign_from_host(std::span<const float> from) {
  if (!on_device()) return assign(from.data(), from.size());
  resize(from.size());
  if (!from.empty()) cuda::copy_to_device(from.data(), data(), from.size_bytes(), *stream_);
}

void FloatArray::copy_to(size_t first, size_t count, float* to) const {
  copy_floats(data() + first, count, to, stream_);
}

void FloatArray::copy_to_host(size_t first, std::span<float> to) const {
  if (on_device()) {
    cuda::copy_to_host(data() + first, to.data(), to.size_bytes(), *stream_);
  } else {
    copy_to(first, to.size(), to.data());
  }
}

}  // namespace twofour
