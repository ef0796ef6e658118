#include "lib/run/collect/input_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/error.h"
#include "kernels/floats/float_multiply.h"

namespace twofour {

void InputSums::count_rows(int64_t rows, std::span<const float> roots) {
  count += rows;
  if (roots.empty()) {
    weights += static_cast<double>(rows);
    squares += static_cast<double>(rows);
  }
  for (const float root : roots) {
    const double w = static_cast<double>(root) * static_cast<double>(root);
    weights += w;
    squares += w * w;
  }
}

void InputSums::add(std::span<const float> x, int64_t k, std::span<const float> roots) {
  const auto rows = static_cast<int64_t>(x.size()) / k;
  count_rows(rows, roots);
  for (const float v : x) amax = std::max(amax, std::abs(v));
  std::vector<float> scaled;
  if (!roots.empty()) {
    scaled.assign(x.begin(), x.end());
    for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= roots[i / static_cast<size_t>(k)];
    x = scaled;
  }
  if (rows == 0) return;
  if (device != nullptr) {
    device->set_rows(device->bring(x), rows, k);
    return device->add_products(on_device);
  }
  if (products.empty()) products.resize(static_cast<size_t>(k * k));
  cpu::add_products(x.data(), rows, k, products.data());
}

void InputSums::add_on_device(const float* x, int64_t rows, int64_t k) {
  count_rows(rows, {});
  if (rows == 0) return;
  device->find_largest(x, rows * k, device_amax);
  device->set_rows(x, rows, k);
  device->add_products(on_device);
}

void InputSums::finish() {
  if (on_device.bytes() > 0) products = device->take(on_device);
  if (device_amax.bytes() > 0) amax = std::max(amax, device->take(device_amax).front());
}

void InputSums::add(const InputSums& other) {
  if (other.count == 0) return;
  if (products.empty()) products.resize(other.products.size());
  count += other.count;
  amax = std::max(amax, other.amax);
  weights += other.weights;
  squares += other.squares;
  for (size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
}

double InputSums::mean_weight(const std::string& entry) const {
  if (count == 0) return 1;
  const double mean = weights / static_cast<double>(count);
  if (mean > 0 && std::isfinite(mean)) return mean;
  throw Error(fmt::format("{}: expected weights of its tokens with a sum above 0, found {}", entry, weights));
}

std::vector<PlannedEntry> entries_of(const std::vector<InputGroup>& groups) {
  std::vector<PlannedEntry> entries;
  PlannedEntry shared;
  for (const InputGroup& g : groups) {
    entries.push_back({g.linears.front(), g.linears, g.k, g.times});
    if (g.expert < 0) continue;
    shared.name = g.block + ".down_proj";
    shared.k = g.k;
    shared.linears.push_back(g.linears.front());
  }
  if (!shared.linears.empty()) entries.push_back(std::move(shared));
  return entries;
}

int64_t experts_of(const std::vector<InputGroup>& groups) {
  int64_t experts = 0;
  for (const InputGroup& g : groups) experts = std::max(experts, g.expert + 1);
  return experts;
}

std::string block_of(const std::vector<InputGroup>& groups) {
  for (const InputGroup& g : groups) {
    if (!g.block.empty()) return g.block;
  }
  return {};
}

}  // namespace twofour
