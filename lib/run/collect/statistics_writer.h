#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/run/collect/input_sums.h"

namespace twofour {

/// Prefix of the names of sums over held-out tokens.
inline constexpr const char* kHeldOut = "heldout.";

/// The metadata that identifies a run in a statistics file. The keys are `weights`, `tokens`, `text` and
/// `weighting`, see lib/recipe/statistics/README.md.
using StatisticsMetadata = std::map<std::string, std::string>;

/// Writes a statistics file. All of its tensors must be planned before the first is written.
class StatisticsWriter {
 public:
  /// Takes bytes of the file that begin at `offset`.
  using Put = std::function<void(uint64_t offset, std::span<const uint8_t> bytes)>;

  /// Plans an entry. With `held_out`, plans a second one under `heldout.`.
  void plan(const PlannedEntry& entry, bool held_out = false);
  void plan_saliency(const std::string& block, int64_t experts);
  size_t entries() const { return entries_; }

  /// Ends planning. Returns the size of the whole file in bytes.
  uint64_t begin(StatisticsMetadata metadata, Put put);
  void write_header() const;
  /// Writes a header of the same size that marks the file as unfinished.
  void write_unfinished_header() const;
  /// Writes a planned entry. `prefix` is "" or "heldout.". Throws Error if sums are not finite.
  void write(const PlannedEntry& entry, const InputSums& sums, const std::string& prefix = "") const;
  /// Writes `fisher_hessian` of a planned entry, its sums times `share`.
  void write_fisher(const PlannedEntry& entry, const InputSums& fisher, double share) const;
  /// Writes `fisher_rows` of a linear.
  void write_fisher_rows(const std::string& linear, const std::vector<double>& sums) const;
  /// Writes only the count of an entry.
  void write_count(const PlannedEntry& entry, int64_t count) const;
  /// Writes rows of a target offset, from row `row` on. They are sums over tokens.
  void write_target(const std::string& linear, int64_t row, int64_t k, std::span<const float> rows) const;
  void write_saliency(const std::string& block, const std::vector<double>& sums) const;
  /// The offsets and sizes in bytes of an entry's data in the file, without sums under `heldout.`.
  std::vector<std::pair<uint64_t, uint64_t>> places(const PlannedEntry& entry) const;

 private:
  void put_header(const std::string& header) const;
  void write_products(const std::string& entry, const char* leaf, int64_t k,
                      const std::vector<float>& products, float factor) const;
  template <class T>
  void put(const std::string& name, uint64_t offset, std::span<const T> values) const;

  std::vector<TensorInfo> tensors_;
  std::map<std::string, uint64_t> places_;
  std::map<std::string, int64_t> linears_;
  Json groups_ = Json::object();
  size_t entries_ = 0;
  StatisticsMetadata metadata_;
  std::string header_;
  Put put_;
};

}  // namespace twofour
