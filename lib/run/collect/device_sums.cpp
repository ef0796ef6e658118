#include "lib/run/collect/device_sums.h"

#include "kernels/floats/device_vectors.h"

namespace twofour {
namespace {

float* room_of_zeros(cuda::DeviceMemory& sums, int64_t numbers, const cuda::DeviceStream& stream) {
  if (sums.bytes() == 0) {
    sums = cuda::DeviceMemory(static_cast<size_t>(numbers) * sizeof(float));
    cuda::clear_device_bytes(sums.as(), sums.bytes(), stream.get());
  }
  return sums.as<float>();
}

}  // namespace

void DeviceSums::set_rows(const float* x, int64_t m, int64_t k) {
  m_ = m, k_ = k;
  products_.set_rows(x, m, k, stream_.get());
}

void DeviceSums::add_products(cuda::DeviceMemory& sums) {
  products_.add_products(room_of_zeros(sums, k_ * k_, stream_), stream_.get());
}

void DeviceSums::add_cross_products(const float* a, int64_t n, cuda::DeviceMemory& sums) {
  products_.add_cross_products(a, n, room_of_zeros(sums, n * k_, stream_), stream_.get());
}

void DeviceSums::multiply(const float* w, int64_t n, float* out) {
  cuda::DeviceMatrix matrix;
  matrix.format = cuda::MatrixFormat::f32;
  matrix.weights = w;
  matrix.n = n, matrix.k = k_;
  products_.multiply(matrix, out, n, false, stream_.get());
}

void DeviceSums::find_largest(const float* x, int64_t count, cuda::DeviceMemory& most) {
  cuda::find_largest(x, count, room_of_zeros(most, 1, stream_), stream_.get());
}

void DeviceSums::multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                          std::span<float> out) {
  const auto m = static_cast<int64_t>(x.size()) / k;
  weights_.assign_from_host(w);
  set_rows(bring(x), m, k);
  multiply(weights_.data(), n, out_.resize(out.size()));
  out_.copy_to_host(0, out);
}

const float* DeviceSums::bring(std::span<const float> rows) {
  brought_.assign_from_host(rows);
  return brought_.data();
}

std::vector<float> DeviceSums::take(cuda::DeviceMemory& sums) const {
  wait();
  std::vector<float> values = sums.download<float>();
  sums = {};
  return values;
}

}  // namespace twofour
