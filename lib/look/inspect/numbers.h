#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/look/inspect/slice.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/matrices.h"

namespace twofour {

/// Weights that have a name: a module's, or those of one of its matrices.
struct NamedWeights {
  std::string name, format;              ///< "NVFP4", "FP8", "BF16", ...
  std::vector<int64_t> shape;            ///< [E, N, K] of a stack, otherwise [N, K]
  size_t module = 0;                     ///< in Matrices::modules()
  const StoredMatrix* matrix = nullptr;  ///< nullptr: the whole module
};

/// Decoded weights of a checkpoint by name, in any format. Safe from several threads.
class NamedNumbers {
 public:
  /// `checkpoint` must outlive this.
  explicit NamedNumbers(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), matrices_(checkpoint, findings_) {}

  const Matrices& matrices() const { return matrices_; }
  /// A module, or one of its matrices ("P.3.up_proj"); nullopt if none has that name. Throws Error, with the
  /// reason, if the weights do not follow from codes and scales alone.
  std::optional<NamedWeights> find(std::string_view name) const;
  /// The weights in `ranges`, one for each dimension, in row-major order. Throws Error as
  /// WeightReader::read_rows.
  void read(const NamedWeights& weights, std::span<const SliceRange> ranges, std::span<float> out) const;

 private:
  const Checkpoint& checkpoint_;
  Findings findings_;  ///< of modules that cannot be read
  Matrices matrices_;
};

/// Elements of a tensor in `ranges`, one for each dimension, in row-major order. A type with values gives
/// doubles, any other type the unsigned numbers of its bytes. Throws Error on elements that share bytes.
std::vector<double> read_elements(const Checkpoint& checkpoint, size_t tensor,
                                  std::span<const SliceRange> ranges);

}  // namespace twofour
