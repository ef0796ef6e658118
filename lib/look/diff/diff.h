#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/names/pattern.h"
#include "lib/base/threads/progress.h"
#include "lib/look/metrics/moved_weights.h"
#include "lib/look/metrics/value_error.h"
#include "lib/recipe/artifact/open_source.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/tensor_values.h"

namespace twofour {

/// The result of comparing the two sides of a name, in value space: 0 equals -0, NaN equals NaN.
enum class DiffClass {
  kEqual,
  kReciprocal,  ///< equal except for multipliers that are neighbours in float32, as 1/(1/g) may be g's
  kWithin,      ///< every difference within the tolerance
  kDifferent,
  kShape,       ///< unlike shapes
  kType,        ///< types whose values cannot be compared: integers and floats
  kUnreadable,  ///< on at least one side: scales that are NaN, and so on
  kRemoved,     ///< only in A
  kAdded,       ///< only in B
  kUnread,      ///< equal by headers; nothing else was compared
};
inline constexpr size_t kDiffClasses = 10;
/// "equal", "reciprocal", "within-tolerance", "different", "unlike-shape", "unlike-type", "unreadable",
/// "removed", "added", "not-read".
const char* diff_class_name(DiffClass cls);

/// The kind of an entry. The weights of a linear take two or three tensors in most formats.
enum class DiffKind { kWeights, kBias, kInputScale, kTensor };
const char* diff_kind_name(DiffKind kind);

/// One side of an entry.
struct DiffSide {
  std::string tensor;  ///< as stored there: for weights the tensor of values or codes
  std::string format;  ///< "NVFP4", "MXFP4", "FP8", or the type of its elements; empty: nothing is there
  std::vector<int64_t> shape;  ///< [N, K] of one expert for weights, in any form of storage
  bool is_there() const { return !format.empty(); }
};

/// The values in A and in B.
using FirstValues = std::optional<std::array<ElementValue, 2>>;

/// One matrix of weights, or one tensor that is not part of a matrix.
struct DiffEntry {
  /// As in the files, A's before B's; for a matrix in a stack, as if each expert were separate:
  /// "model.layers.3.mlp.experts.7.up_proj". Matrices are paired across dialects, layouts and stacks.
  std::string name;
  DiffKind kind = DiffKind::kTensor;
  DiffClass cls = DiffClass::kEqual;
  DiffSide a, b;
  size_t row = 0;           ///< in DiffResult::rows
  int64_t expert = -1;      ///< the expert that it belongs to; -1: none
  bool same_bytes = false;  ///< equality was found without decoding
  /// For kWithin and kDifferent; A's weights are the source's. `beyond` counts differences, `first` is the
  /// place of the first (e: the expert, or 0). For kReciprocal only `weights`. Integers are compared exactly,
  /// with any tolerance; figures of types that are neither integer nor float are NaN.
  ValueError error;
  /// For types without float values: the values at `error.first` in A and in B, which floats would round.
  FirstValues first{};
  std::string message;  ///< of kShape, kType and kUnreadable: expected and found

  /// True if `error` has figures.
  bool has_figures() const { return cls == DiffClass::kDifferent || cls == DiffClass::kWithin; }
  bool renamed() const { return a.is_there() && b.is_there() && a.tensor != b.tensor; }
};

/// The entries of one layer and projection, all experts together.
struct DiffRow {
  std::string layer;       ///< "model.layers.3"; empty: belongs to none
  std::string projection;  ///< the rest of the name without numbers of experts: "mlp.experts.up_proj"
  std::array<uint64_t, kDiffClasses> counts{};  ///< of entries, by class
  ValueError error;                             ///< of entries with figures (kWithin, kDifferent) together
  FirstValues first{};                          ///< as of an entry
  size_t worst = 0;                             ///< entry of the smallest SNR, if there are figures
  uint64_t entries() const;
  uint64_t count(DiffClass cls) const { return counts[static_cast<size_t>(cls)]; }
};

/// A file that is no tensor: config, tokenizer, and so on.
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
  std::array<uint64_t, kDiffClasses> counts{};  ///< of entries, by class
  uint64_t renamed = 0;         ///< entries with tensors that have other names on the other side
  uint64_t same_bytes = 0;      ///< equal entries that are equal byte for byte
  std::vector<DiffFile> files;  ///< by name; not counted anywhere
  std::vector<MovedWeights>
      moved{};        ///< different weights that are elsewhere in B, or in another order there
  Findings findings;  ///< of opening both, and of modules that cannot be read
  uint64_t count(DiffClass cls) const { return counts[static_cast<size_t>(cls)]; }
};

/// Selection and precision of a comparison.
struct DiffOptions {
  std::vector<NamePattern> include{},
      exclude{};  ///< over names, modules and stored tensors; empty: everything
  /// A value differs if the difference is larger than this times A's value (2^-126 for subnormal values);
  /// integers differ if there is any difference.
  double tolerance = 0;
  /// Compare only names, shapes and formats, without reading weights; unlike formats are kType.
  bool headers_only = false;
};

/// Compares the tensors of two checkpoints or artifacts as numbers, by bounded reads on OpenMP's threads; the
/// result is the same for any number of them. Open both with open_source. Throws Error if a pattern matches
/// nothing.
DiffResult diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, Progress& progress);

}  // namespace twofour
