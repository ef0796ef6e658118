#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/names/pattern.h"
#include "lib/base/threads/progress.h"
#include "lib/look/diff/configs.h"
#include "lib/look/metrics/moved_weights.h"
#include "lib/look/metrics/value_error.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {

/// The result of comparing the values of the two sides of a name. 0 equals -0, and NaN equals NaN.
enum class DiffClass {
  kEqual,
  kReciprocal,  ///< equal except that multipliers are neighbours in float32, like g and 1/(1/g)
  kWithin,      ///< every difference is within the tolerance
  kDifferent,
  kShape,       ///< different shapes
  kType,        ///< types whose values cannot be compared, such as integers and floats
  kUnreadable,  ///< at least one side cannot be read: NaN scales, and so on
  kRemoved,     ///< the name is only in A
  kAdded,       ///< the name is only in B
  kUnread,      ///< the headers are equal; nothing else was compared
};
inline constexpr size_t kDiffClasses = 10;
/// The name of a class: "equal", "reciprocal", "within-tolerance", "different", "unlike-shape",
/// "unlike-type", "unreadable", "removed", "added" or "not-read".
const char* diff_class_name(DiffClass cls);

/// The kind of an entry. In most formats, kWeights stands for two or three tensors.
enum class DiffKind { kWeights, kBias, kInputScale, kTensor };
const char* diff_kind_name(DiffKind kind);

/// One side of an entry.
struct DiffSide {
  std::string tensor;          ///< its name in that checkpoint; for weights, that of values or codes
  std::string format;          ///< "NVFP4", "MXFP4", "FP8" or an element type; empty if absent
  std::vector<int64_t> shape;  ///< for weights, [N, K] of one expert in any form of storage
  bool is_there() const { return !format.empty(); }
};

/// The values in A and in B.
using FirstValues = std::optional<std::array<ElementValue, 2>>;

/// One matrix of weights, or one tensor that is not part of a matrix.
struct DiffEntry {
  /// The name in the files; if the two differ, A's. For a matrix in a stack, it is the name that a separate
  /// expert would have: "model.layers.3.mlp.experts.7.up_proj". Matrices are paired across dialects, layouts
  /// and stacks.
  std::string name;
  DiffKind kind = DiffKind::kTensor;
  DiffClass cls = DiffClass::kEqual;
  DiffSide a, b;
  size_t row = 0;           ///< in DiffResult::rows
  int64_t expert = -1;      ///< its expert; -1 if it belongs to none
  bool same_bytes = false;  ///< equality was found without decoding
  /// The error, for kWithin and kDifferent. A is the source. `beyond` counts differences, and `first` is the
  /// place of the first difference, where e is the expert or 0. For kReciprocal, only `weights` is set.
  /// Integers are compared exactly, with any tolerance. Figures of types that are neither integer nor
  /// float are NaN.
  ValueError error;
  /// For types without float values, the exact values at `error.first` in A and in B, which floats would
  /// round.
  FirstValues first{};
  std::string message;  ///< for kShape, kType and kUnreadable: expected and found

  /// True if `error` has figures.
  bool has_figures() const { return cls == DiffClass::kDifferent || cls == DiffClass::kWithin; }
  bool renamed() const { return a.is_there() && b.is_there() && a.tensor != b.tensor; }
};

/// The entries of one layer and projection, all experts together.
struct DiffRow {
  std::string layer;                            ///< "model.layers.3"; empty if it belongs to no layer
  std::string projection;                       ///< the rest without expert numbers: "mlp.experts.up_proj"
  std::array<uint64_t, kDiffClasses> counts{};  ///< numbers of entries by class
  ValueError error;                             ///< over all entries with figures (kWithin, kDifferent)
  FirstValues first{};                          ///< as in DiffEntry
  size_t worst = 0;                             ///< entry with the smallest SNR, if there are figures
  uint64_t entries() const;
  uint64_t count(DiffClass cls) const { return counts[static_cast<size_t>(cls)]; }
};

/// A file without tensors: config, tokenizer, and so on.
struct DiffFile {
  enum class State { kSame, kDifferent, kOnlyA, kOnlyB };
  std::string name;
  State state;
};

/// The result of comparing two checkpoints or artifacts.
struct DiffResult {
  std::string a, b;            ///< paths
  std::string a_what, b_what;  ///< "NVFP4 checkpoint, modelopt", "twofour artifact, layout v7"
  size_t a_tensors = 0, b_tensors = 0;
  double tolerance = 0;
  bool headers_only = false;
  std::vector<DiffEntry> entries;               ///< in natural order of names
  std::vector<DiffRow> rows;                    ///< in natural order of layer, then projection
  std::array<uint64_t, kDiffClasses> counts{};  ///< numbers of entries by class
  uint64_t renamed = 0;                         ///< entries whose tensors have different names in A and B
  uint64_t same_bytes = 0;                      ///< entries that are equal byte for byte
  std::vector<DiffFile> files;                  ///< by name; not counted anywhere
  std::vector<ConfigDifference> config{};       ///< not counted in `counts`
  std::vector<MovedWeights>
      moved{};        ///< weights that differ, but are elsewhere in B or in another order there
  Findings findings;  ///< from opening both, and about unreadable modules
  uint64_t count(DiffClass cls) const { return counts[static_cast<size_t>(cls)]; }
};

/// Selection and precision of a comparison.
struct DiffOptions {
  std::vector<NamePattern> include{},
      exclude{};  ///< match names, modules and stored tensors; empty for everything
  /// A value differs if the difference is larger than `tolerance` times the magnitude of A's value (2^-126
  /// for subnormal values). Integers differ if there is any difference.
  double tolerance = 0;
  /// If true, only names, shapes and formats are compared, without reading weights. Different formats are
  /// kType.
  bool headers_only = false;
  /// If true and `include` is empty, config.json and generation_config.json are compared, too.
  bool configs = true;
};

/// Compares the tensors of two checkpoints or artifacts as numbers, by bounded reads on OpenMP's threads. The
/// result is the same for any number of threads. Open both with open_source. Throws Error if a pattern
/// matches nothing.
DiffResult diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, Progress& progress);

}  // namespace twofour
