#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/run/collect/device_sums.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// The sums over the tokens of an entry. The CPU or `device` adds them up.
struct InputSums {
  std::vector<float> products;  ///< sum of w x x', [K, K], upper triangle only; empty if there was no token
  int64_t count = 0;            ///< number of tokens
  float amax = 0;
  double weights = 0, squares = 0;                ///< sums of w and of w^2, where w is the weight of a token
  DeviceSums* device = nullptr;                   ///< computes `products`, or the CPU if it is nullptr
  cuda::DeviceMemory on_device{}, device_amax{};  ///< on the device until finish()

  /// Adds rows `x` [rows, k]. `roots` holds the square roots of the weights of the rows, which are above 0.
  /// If it is empty, every weight is 1.
  void add(std::span<const float> x, int64_t k, std::span<const float> roots = {});
  /// Adds complete rows in memory of `device`. Each row has weight 1.
  void add_on_device(const float* x, int64_t rows, int64_t k);
  /// Counts rows without adding them.
  void count_rows(int64_t rows, std::span<const float> roots);
  void add(const InputSums& other);
  /// Copies the sums from the device. Call this after the last rows.
  void finish();
  /// The number by which weights w are divided to make their mean 1. Throws Error, which names `entry`, if it
  /// is not a number.
  double mean_weight(const std::string& entry) const;
};

/// An entry of a statistics file that is to be written.
struct PlannedEntry {
  std::string name;
  std::vector<std::string> linears;
  int64_t k = 0;
  int64_t times = 1;  ///< the weight of each token in the sums
  /// A linear that has a target offset [n, K].
  struct Target {
    std::string linear;
    int64_t n;
  };
  std::vector<Target> targets = {};
  bool has_fisher = false;        ///< the entry has a `fisher_hessian`
  std::vector<Target> rows = {};  ///< linears that have `fisher_rows`
};

/// The entries of a layer. There is one for each group, in order. If the layer has experts, there is one more
/// for the downs of experts without tokens.
std::vector<PlannedEntry> entries_of(const std::vector<InputGroup>& groups);
/// The number of experts in the groups.
int64_t experts_of(const std::vector<InputGroup>& groups);
/// The name of the experts' block. Empty if there are no experts.
std::string block_of(const std::vector<InputGroup>& groups);

}  // namespace twofour
