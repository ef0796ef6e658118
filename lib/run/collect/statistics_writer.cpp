#include "lib/run/collect/statistics_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "formats/error.h"
#include "kernels/device/isa.h"
#include "lib/recipe/statistics/statistics.h"

namespace twofour {
namespace {

void check_finite(const std::string& name, std::span<const float> values) {
  for (const float v : values) {
    if (!std::isfinite(v)) throw Error(fmt::format("{}: expected sums that are finite, found {}", name, v));
  }
}

TensorInfo tensor_of(std::string name, DType dtype, std::vector<int64_t> shape) {
  TensorInfo t{std::move(name), dtype, std::move(shape), 0, 0};
  t.end = tensor_bytes(t.name, t.dtype, t.shape);
  return t;
}

/// The tensors of an entry: its sums, and the target offsets of its linears.
std::vector<TensorInfo> tensors_of(const PlannedEntry& e, bool held_out) {
  std::vector<TensorInfo> all;
  for (const char* prefix : {"", kHeldOut}) {
    if (*prefix != '\0' && !held_out) continue;
    const std::string name = prefix + e.name;
    all.push_back(tensor_of(name + ".hessian", DType::kF32, {e.k * (e.k + 1) / 2}));
    all.push_back(tensor_of(name + ".count", DType::kI64, {}));
    all.push_back(tensor_of(name + ".amax", DType::kF32, {}));
    all.push_back(tensor_of(name + ".sum_squared_weights", DType::kF64, {}));
  }
  for (const PlannedEntry::Target& t : e.targets)
    all.push_back(tensor_of(t.linear + ".target_offset", DType::kF32, {t.n, e.k}));
  if (e.has_fisher) all.push_back(tensor_of(e.name + ".fisher_hessian", DType::kF32, {e.k * (e.k + 1) / 2}));
  for (const PlannedEntry::Target& t : e.rows)
    all.push_back(tensor_of(t.linear + ".fisher_rows", DType::kF32, {t.n}));
  return all;
}

}  // namespace

void StatisticsWriter::plan(const PlannedEntry& e, bool held_out) {
  ++entries_;
  for (const std::string& linear : e.linears) linears_.emplace(linear, e.k);
  if (e.linears != std::vector<std::string>{e.name}) groups_[e.name] = e.linears;
  for (TensorInfo& t : tensors_of(e, held_out)) tensors_.push_back(std::move(t));
}

void StatisticsWriter::plan_saliency(const std::string& block, int64_t experts) {
  tensors_.push_back(tensor_of(block + ".saliency", DType::kF32, {experts}));
}

uint64_t StatisticsWriter::begin(StatisticsMetadata metadata, Put put) {
  const uint64_t bytes = assign_offsets(tensors_);
  for (const TensorInfo& t : tensors_) places_.emplace(t.name, t.begin);
  metadata["format"] = kStatisticsFormat;
  metadata["structure"] = structure_of(linears_);
  metadata["groups"] = groups_.dump();
  metadata.emplace("device", "cpu");
  metadata["isa"] = isa_name(best_isa());
  header_ = format_safetensors_header(tensors_, metadata);
  metadata_ = std::move(metadata);
  put_ = std::move(put);
  return header_.size() + bytes;
}

void StatisticsWriter::put_header(const std::string& header) const {
  put_(0, {reinterpret_cast<const uint8_t*>(header.data()), header.size()});
}

void StatisticsWriter::write_header() const { put_header(header_); }

void StatisticsWriter::write_unfinished_header() const {
  StatisticsMetadata metadata = metadata_;
  metadata["format"] = kUnfinishedStatistics;
  put_header(format_safetensors_header(tensors_, metadata));
}

template <class T>
void StatisticsWriter::put(const std::string& name, uint64_t offset, std::span<const T> values) const {
  put_(header_.size() + places_.at(name) + offset,
       {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

/// Writes the upper triangle of products [k, k] times a factor. Products that are empty are 0.
void StatisticsWriter::write_products(const std::string& entry, const char* leaf, int64_t k,
                                      const std::vector<float>& products, float factor) const {
  std::vector<float> row(static_cast<size_t>(k));
  uint64_t offset = 0;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = i; j < k; ++j)
      row[static_cast<size_t>(j)] =
          products.empty() ? 0.0f : products[static_cast<size_t>(i * k + j)] * factor;
    const std::span<const float> own = std::span<const float>(row).subspan(static_cast<size_t>(i));
    check_finite(entry, own);
    put(entry + leaf, offset, own);
    offset += own.size_bytes();
  }
}

void StatisticsWriter::write(const PlannedEntry& e, const InputSums& sums, const std::string& prefix) const {
  const std::string name = prefix + e.name;
  const double mean = sums.mean_weight(name);
  write_products(name, ".hessian", e.k, sums.products,
                 static_cast<float>(static_cast<double>(e.times) / mean));
  const double squares = sums.squares * static_cast<double>(e.times) / (mean * mean);
  put(name + ".amax", 0, std::span<const float>(&sums.amax, 1));
  put(name + ".sum_squared_weights", 0, std::span<const double>(&squares, 1));
  const int64_t count = sums.count * e.times;
  put(name + ".count", 0, std::span<const int64_t>(&count, 1));
}

void StatisticsWriter::write_fisher(const PlannedEntry& e, const InputSums& fisher, double share) const {
  write_products(e.name, ".fisher_hessian", e.k, fisher.products, static_cast<float>(share));
}

void StatisticsWriter::write_fisher_rows(const std::string& linear, const std::vector<double>& sums) const {
  const std::vector<float> values(sums.begin(), sums.end());
  check_finite(linear + ".fisher_rows", values);
  put(linear + ".fisher_rows", 0, std::span<const float>(values));
}

void StatisticsWriter::write_count(const PlannedEntry& e, int64_t count) const {
  put(e.name + ".count", 0, std::span<const int64_t>(&count, 1));
}

void StatisticsWriter::write_target(const std::string& linear, int64_t row, int64_t k,
                                    std::span<const float> rows) const {
  check_finite(linear + ".target_offset", rows);
  put(linear + ".target_offset", static_cast<uint64_t>(row * k) * sizeof(float), rows);
}

std::vector<std::pair<uint64_t, uint64_t>> StatisticsWriter::places(const PlannedEntry& e) const {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const TensorInfo& t : tensors_of(e, false))
    all.emplace_back(header_.size() + places_.at(t.name), t.bytes());
  return all;
}

void StatisticsWriter::write_saliency(const std::string& block, const std::vector<double>& sums) const {
  const std::vector<float> values(sums.begin(), sums.end());
  put(block + ".saliency", 0, std::span<const float>(values));
}

}  // namespace twofour
