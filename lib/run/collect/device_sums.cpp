#include "lib/run/collect/device_sums.h"

namespace twofour {
namespace {

float* room_of_zeros(cuda::DeviceMemory& sums, int64_t numbers) {
  if (sums.bytes() == 0) {
    sums = cuda::DeviceMemory(static_cast<size_t>(numbers) * sizeof(float));
    sums.fill(0);
  }
  return sums.as<float>();
}

}  // namespace

const float* DeviceSums::bring(std::span<const float> rows, cuda::DeviceMemory& to) const {
  if (to.bytes() < rows.size_bytes()) {
    to = {};
    to = cuda::DeviceMemory(rows.size_bytes());
  }
  cuda::copy_to_device(rows.data(), to.as(), rows.size_bytes(), stream_);
  return to.as<float>();
}

void DeviceSums::add_products(std::span<const float> x, int64_t k, cuda::DeviceMemory& sums) {
  float* to = room_of_zeros(sums, k * k);
  products_.set_rows(bring(x, right_), static_cast<int64_t>(x.size()) / k, k, stream_.get());
  products_.add_products(to, stream_.get());
}

void DeviceSums::add_cross_products(std::span<const float> a, int64_t n, std::span<const float> x, int64_t k,
                                    cuda::DeviceMemory& sums) {
  float* to = room_of_zeros(sums, n * k);
  products_.set_rows(bring(x, right_), static_cast<int64_t>(x.size()) / k, k, stream_.get());
  products_.add_cross_products(bring(a, left_), n, to, stream_.get());
}

void DeviceSums::multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                          std::span<float> out) {
  const auto m = static_cast<int64_t>(x.size()) / k;
  cuda::DeviceMatrix matrix;
  matrix.format = cuda::MatrixFormat::f32;
  matrix.weights = bring(w, left_);
  matrix.n = n, matrix.k = k;
  products_.set_rows(bring(x, right_), m, k, stream_.get());
  if (out_.bytes() < out.size_bytes()) {
    out_ = {};
    out_ = cuda::DeviceMemory(out.size_bytes());
  }
  products_.multiply(matrix, out_.as<float>(), n, false, stream_.get());
  cuda::copy_to_host(out_.as(), out.data(), out.size_bytes(), stream_);
}

std::vector<float> DeviceSums::take(cuda::DeviceMemory& sums) const {
  stream_.synchronize();
  std::vector<float> values = sums.download<float>();
  sums = {};
  return values;
}

}  // namespace twofour
