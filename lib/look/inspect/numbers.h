#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/look/inspect/slice.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/matrices.h"

namespace twofour {

/// The weights of a named module, or of one of its matrices.
struct NamedWeights {
  std::string name, format;              ///< "NVFP4", "FP8", "BF16", ...
  std::vector<int64_t> shape;            ///< [E, N, K] for a stack, otherwise [N, K]
  size_t module = 0;                     ///< in Matrices::modules()
  const StoredMatrix* matrix = nullptr;  ///< null for the whole module
};

/// Decoded weights of a checkpoint by name, in any format. Safe from several threads.
class NamedNumbers {
 public:
  /// `checkpoint` must outlive this.
  explicit NamedNumbers(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), matrices_(checkpoint, findings_) {}

  const Matrices& matrices() const { return matrices_; }
  /// Finds a module, or one of its matrices ("P.3.up_proj"), by name. Empty if there is none. Throws Error,
  /// with the reason, if codes and scales do not suffice to compute the weights.
  std::optional<NamedWeights> find(std::string_view name) const;
  /// Reads the weights in `ranges`, which has a range for each dimension, in row-major order. Throws Error
  /// like WeightReader::read_rows.
  void read(const NamedWeights& weights, std::span<const SliceRange> ranges, std::span<float> out) const;

 private:
  const Checkpoint& checkpoint_;
  Findings findings_;  ///< about modules that cannot be read
  Matrices matrices_;
};

/// Reads the elements of a tensor in `ranges`, which has a range for each dimension, in row-major order.
/// Elements of a numeric type become doubles. Elements of any other type become the unsigned numbers in their
/// bytes. Throws Error on elements that share bytes.
std::vector<double> read_elements(const Checkpoint& checkpoint, size_t tensor,
                                  std::span<const SliceRange> ranges);

}  // namespace twofour
