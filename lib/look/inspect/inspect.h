#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/names/name_tree.h"
#include "lib/base/names/pattern.h"
#include "lib/look/metrics/weight_stats.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Tensors of the same type and shape whose names differ only in numbers:
/// "model.layers.0-47.mlp.gate.weight".
struct TensorGroup {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  size_t count = 0;
  uint64_t bytes = 0;
};

/// Quantized modules of the same shape and dialect whose names differ only in numbers.
struct ModuleGroup {
  std::string name;
  std::string dialect;  ///< for other formats, such as "FP8, blocks of 128 x 128, BF16 scales"
  int64_t e, n, k;
  size_t count = 0;
  uint64_t bytes = 0;  ///< codes and scales, as the files store them
  /// The statistics of all modules together. It is a pointer, because 2 KiB per group would exceed everything
  /// else if no names fold.
  std::unique_ptr<const WeightStats> stats{};
  std::vector<ModuleStats> members{};  ///< figures of each, with `stats`
};

struct InspectReport {
  std::string what;  ///< "NVFP4 checkpoint, modelopt", "twofour artifact, layout v7", ...
  std::vector<TensorGroup> tensors;
  std::vector<ModuleGroup> modules;        ///< in NVFP4
  std::vector<ModuleGroup> other_modules;  ///< in FP8, MXFP4, INT4, also embeddings; without stats
  std::map<std::string, size_t> formats;   ///< number of quantized modules by format: "INT4"
  size_t tensor_count = 0, file_count = 0;
  /// The sum of both is the size of the files with tensors, since no checkpoint that can be opened has gaps.
  uint64_t data_bytes = 0, header_bytes = 0;
  std::map<std::string, uint64_t> other_files;  ///< sizes of a directory's other files
  uint64_t other_bytes() const;
  std::map<std::string, uint64_t> layout_bytes;  ///< size of the default set in each layout
  uint64_t default_set_bytes = 0;                ///< current size of the default set
  Findings findings;
};

/// Describes a checkpoint or artifact from its headers and, with `stats`, also from its weights. Open it with
/// Checkpoint::open. The modules of an artifact in a layout are its source's modules. If `only` is not empty,
/// only tensors and modules that match it are listed. Throws Error for a pattern that matches nothing.
InspectReport inspect(const Checkpoint& checkpoint, const std::vector<NamePattern>& only, bool stats,
                      int jobs);

/// The kind of a checkpoint: "NVFP4 checkpoint, modelopt", "twofour artifact, layout v7", and so on.
std::string describe_kind(const Checkpoint& checkpoint);

/// Describes byte `offset` of a tensor, which may belong to a layout, to an NVFP4 module or to neither.
std::string describe_byte(const Checkpoint& checkpoint, const std::string& tensor, uint64_t offset);

}  // namespace twofour
