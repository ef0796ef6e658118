#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/artifact/open_source.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/tensor_values.h"
#include "lib/findings/finding.h"
#include "lib/metrics/moved_weights.h"
#include "lib/metrics/value_error.h"
#include "lib/names/pattern.h"
#include "lib/threads/progress.h"

namespace twofour {

/// How what two checkpoints hold under one name compares, in value space: 0 equals -0, NaN equals NaN.
enum class DiffClass {
  kEqual,
  kReciprocal,  ///< equal but for multipliers that are neighbours in float32, as 1/(1/g) may be g's
  kWithin,      ///< every difference within the tolerance
  kDifferent,
  kShape,       ///< unlike shapes
  kType,        ///< types with values that cannot be compared, integers with floats
  kUnreadable,  ///< of one side at least: scales that are NaN, and so on
  kRemoved,     ///< only in A
  kAdded,       ///< only in B
  kUnread,      ///< alike by headers, and nothing else was compared
};
inline constexpr size_t kDiffClasses = 10;
/// "equal", "reciprocal", "within-tolerance", "different", "unlike-shape", "unlike-type", "unreadable",
/// "removed", "added", "not-read".
const char* diff_class_name(DiffClass cls);

/// What an entry is. The weights of a linear take two or three tensors in most formats.
enum class DiffKind { kWeights, kBias, kInputScale, kTensor };
const char* diff_kind_name(DiffKind kind);

/// What one side holds.
struct DiffSide {
  std::string tensor;  ///< as stored there: of weights the tensor of values or codes
  std::string format;  ///< "NVFP4", "MXFP4", "FP8", or the type of its elements; empty: nothing is there
  std::vector<int64_t> shape;  ///< of weights [N, K] of one expert, however it is stored
  bool is_there() const { return !format.empty(); }
};

/// The values in A and in B.
using FirstValues = std::optional<std::array<ElementValue, 2>>;

/// One matrix of weights, or one tensor that is not part of any.
struct DiffEntry {
  /// As the files have it, A's before B's; of a matrix in a stack, as if each expert had its own:
  /// "model.layers.3.mlp.experts.7.up_proj". Matrices are paired whatever their dialect, layout or stacks.
  std::string name;
  DiffKind kind = DiffKind::kTensor;
  DiffClass cls = DiffClass::kEqual;
  DiffSide a, b;
  size_t row = 0;           ///< in DiffResult::rows
  int64_t expert = -1;      ///< that it belongs to; -1: none
  bool same_bytes = false;  ///< nothing had to be decoded to see that it is equal
  /// Of kWithin and kDifferent; A's weights are the source's. `beyond` counts what is different, `first` is
  /// its place (e: the expert, or 0). Of kReciprocal only `weights`. Integers are held against each other
  /// exactly, whatever the tolerance; figures of types that are neither integer nor float are NaN.
  ValueError error;
  /// Of types without float values: the values at `error.first` in A and in B, which floats would round.
  FirstValues first{};
  std::string message;  ///< of kShape, kType and kUnreadable: what was expected and found

  /// Whether `error` says how far values differ.
  bool has_figures() const { return cls == DiffClass::kDifferent || cls == DiffClass::kWithin; }
  bool renamed() const { return a.is_there() && b.is_there() && a.tensor != b.tensor; }
};

/// The entries of one layer and projection, all experts together.
struct DiffRow {
  std::string layer;       ///< "model.layers.3"; empty: belongs to none
  std::string projection;  ///< the rest of the name without numbers of experts: "mlp.experts.up_proj"
  std::array<uint64_t, kDiffClasses> counts{};  ///< of entries, by class
  ValueError error;                             ///< of those with figures (kWithin, kDifferent) together
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

/// What comparing two checkpoints or artifacts showed.
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
  uint64_t same_bytes = 0;      ///< equal entries that are so byte for byte
  std::vector<DiffFile> files;  ///< by name; not counted anywhere
  std::vector<MovedWeights>
      moved{};        ///< what of that which differs is elsewhere in B, or in another order there
  Findings findings;  ///< of opening both, and of modules that cannot be read
  uint64_t count(DiffClass cls) const { return counts[static_cast<size_t>(cls)]; }
};

/// What is compared and how closely.
struct DiffOptions {
  std::vector<NamePattern> include{},
      exclude{};  ///< over names, modules and stored tensors; empty: everything
  /// A value differs where the difference is larger than this times A's value (of subnormal ones, 2^-126);
  /// integers where there is any.
  double tolerance = 0;
  /// Read no weights: names, shapes and formats alone; unlike formats are kType.
  bool headers_only = false;
};

/// Compares the tensors of two checkpoints or artifacts as numbers, by bounded reads on OpenMP's threads; the
/// result is the same for any number of them. Open both with open_source. Throws Error where a
/// pattern matches nothing.
DiffResult diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, Progress& progress);

}  // namespace twofour
