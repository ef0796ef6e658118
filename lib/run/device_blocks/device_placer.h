#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_matrix.h"
#include "lib/source/model/weights.h"

namespace twofour {

/// Places weights one after the other in one allocation of device memory, or only counts their bytes.
class DevicePlacer {
 public:
  /// Only counts bytes.
  explicit DevicePlacer(const ModelWeights& weights) : weights_(weights) {}
  /// `memory` has the bytes that were counted.
  DevicePlacer(const ModelWeights& weights, cuda::DeviceMemory& memory);

  /// Bytes in the allocation. The next functions have the bytes of weights outside of it, and of experts.
  uint64_t bytes() const { return at_; }
  uint64_t elsewhere() const { return elsewhere_; }
  uint64_t of_experts() const { return of_experts_; }
  void add_elsewhere(uint64_t bytes) { elsewhere_ += bytes; }
  /// Mark the beginning and the end of placing experts.
  void begin_experts() { of_experts_ -= bytes() + elsewhere(); }
  void end_experts() { of_experts_ += bytes() + elsewhere(); }
  bool places() const { return base_ != nullptr; }
  /// Waits until all weights are on the device.
  void finish() {
    if (upload_) upload_->finish();
  }

  /// Places a matrix as it is stored. INT4 becomes float32, and so does FP8 whose blocks do not match the
  /// rows. Throws Error on weights that are no numbers.
  cuda::DeviceMatrix matrix(const ModelMatrix& w);
  const float* vector(const ModelVector& v);
  template <class T>
  const T* values(const std::vector<T>& from) {
    return reinterpret_cast<const T*>(
        place_bytes({reinterpret_cast<const uint8_t*>(from.data()), from.size() * sizeof(T)}));
  }

 private:
  using Fill = std::function<void(size_t, std::span<uint8_t>)>;
  void refuse_numbers(const ModelMatrix& w, int64_t n0, int64_t n1) const;
  void refuse_nan(const ModelMatrix& w, int64_t n0, int64_t n1, const std::vector<uint8_t>& bytes) const;
  void place_scales(const ModelMatrix& w, const ModelWeights::Stored& from, int64_t group, uint8_t last,
                    WeightReader& reader, cuda::DeviceMatrix& to);
  const uint8_t* place_bytes(std::span<const uint8_t> from);
  const uint8_t* place(uint64_t bytes, const Fill& fill);

  const ModelWeights& weights_;
  uint8_t* base_ = nullptr;
  uint64_t at_ = 0, elsewhere_ = 0, of_experts_ = 0;
  std::optional<cuda::DeviceUpload> upload_;
};

}  // namespace twofour
