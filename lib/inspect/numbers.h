#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/matrices.h"
#include "lib/inspect/slice.h"

namespace twofour {

/// Weights that have a name: a module's, or those of one matrix of it.
struct NamedWeights {
  std::string name, format;              ///< "NVFP4", "FP8", "BF16", ...
  std::vector<int64_t> shape;            ///< [E, N, K] of a stack, else [N, K]
  size_t module = 0;                     ///< in Matrices::modules()
  const StoredMatrix* matrix = nullptr;  ///< nullptr: the whole module
};

/// Decoded weights of a checkpoint by name, whatever they are stored as. Safe from several threads.
class NamedNumbers {
 public:
  /// `checkpoint` outlives this.
  explicit NamedNumbers(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), matrices_(checkpoint, findings_) {}

  const Matrices& matrices() const { return matrices_; }
  /// A module, or "P.3.up_proj", a matrix of one; nothing where none has that name. Throws Error, saying why,
  /// on one with weights that are not what its codes and scales say alone.
  std::optional<NamedWeights> find(std::string_view name) const;
  /// The weights of a place in `ranges`, one a dimension, in row-major order. Throws Error as
  /// WeightReader::read_rows.
  void read(const NamedWeights& weights, std::span<const SliceRange> ranges, std::span<float> out) const;

 private:
  const Checkpoint& checkpoint_;
  Findings findings_;  ///< of modules that cannot be read
  Matrices matrices_;
};

/// Elements of a tensor in `ranges`, one a dimension, in row-major order: of a type with values as doubles,
/// of another as the unsigned numbers of their bytes. Throws Error on elements that share bytes.
std::vector<double> read_elements(const Checkpoint& checkpoint, size_t tensor,
                                  std::span<const SliceRange> ranges);

}  // namespace twofour
