#include "kernels/device/check.h"
#include "kernels/solve/device_hessian.h"

namespace twofour::cuda {
namespace {

void upload(DeviceMemory& memory, std::span<const float> numbers) {
  memory.reserve(numbers.size_bytes());
  memory.upload(numbers.data(), numbers.size_bytes());
}

}  // namespace

void DeviceHessian::load(const DampedHessian& hessian, const GroupMaps* maps, std::span<const float> mean) {
  k_ = hessian.k;
  has_factor_ = !hessian.factor.empty();
  has_maps_ = maps != nullptr;
  has_mean_ = !mean.empty();
  has_inverse_ = false;
  upload(matrix_, hessian.matrix);
  if (has_factor_) upload(factor_, hessian.factor);
  if (has_mean_) upload(mean_, mean);
  std::vector<float> diagonal;
  for (int64_t j = 0; j < k_; ++j) diagonal.push_back(hessian.matrix[static_cast<size_t>(j * (k_ + 1))]);
  upload(diagonal_, diagonal);
  if (!has_maps_) return;
  upload(maps_, maps->numbers());
  pattern_ = maps->pattern();
}

void DeviceHessian::factorize(double lambda, double shrink, bool with_factor, bool with_inverse) {
  twofour::check(has_mean_, "a mean");
  constexpr size_t kKept = 256 << 20;  // bytes that are not freed although they are not needed
  has_inverse_ = false;
  if (!inverse_) inverse_ = std::make_unique<DeviceFactor>();
  if (with_factor) {
    inverse_->factorize(mean_.as<float>(), k_, lambda, shrink);
    factor_.reserve(static_cast<size_t>(k_ * k_) * sizeof(float));
    inverse_->write_factor(factor_.as<float>());
    has_factor_ = true;
  }
  const bool is_made = with_factor && shrink == 0;
  if (with_inverse && !is_made) inverse_->factorize(mean_.as<float>(), k_, lambda, 0);
  has_inverse_ = with_inverse;
  if (!with_inverse && inverse_->bytes() > kKept) inverse_.reset();
}

void DeviceHessian::multiply_inverse(std::span<float> rows) {
  twofour::check(has_inverse_, "an inverse");
  inverse_->multiply(rows);
}

std::vector<float> DeviceHessian::factor() const {
  twofour::check(has_factor_, "a factor of the Hessian");
  std::vector<float> numbers(static_cast<size_t>(k_ * k_));
  copy_to_host(factor_.as(), numbers.data(), numbers.size() * sizeof(float));
  return numbers;
}

}  // namespace twofour::cuda
