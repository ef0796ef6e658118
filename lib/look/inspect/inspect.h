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

/// Tensors of one type and shape with names that differ only in numbers: "model.layers.0-47.mlp.gate.weight".
struct TensorGroup {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  size_t count = 0;
  uint64_t bytes = 0;
};

/// Quantized modules with names that differ only in numbers.
struct ModuleGroup {
  std::string name;
  std::string dialect;  ///< for formats other than NVFP4: "FP8, blocks of 128 x 128, BF16 scales"
  int64_t e, n, k;
  size_t count = 0;
  uint64_t bytes = 0;  ///< codes and scales, as the files store them
  /// Of all modules together. It is a pointer because 2 KiB per group would exceed everything else if no
  /// names fold.
  std::unique_ptr<const WeightStats> stats{};
  std::vector<ModuleStats> members{};  ///< with stats: of each
};

struct InspectReport {
  std::string what;  ///< "NVFP4 checkpoint, modelopt", "twofour artifact, layout v7", ...
  std::vector<TensorGroup> tensors;
  std::vector<ModuleGroup> modules;        ///< in NVFP4
  std::vector<ModuleGroup> other_modules;  ///< in FP8, MXFP4 and INT4, embeddings too; without stats
  std::map<std::string, size_t> formats;   ///< number of quantized modules by format: "INT4"
  size_t tensor_count = 0, file_count = 0;
  /// The sum is the size of the files with tensors; no checkpoint that can be opened has gaps.
  uint64_t data_bytes = 0, header_bytes = 0;
  std::map<std::string, uint64_t> other_files;  ///< of a directory: all its other files, with sizes
  uint64_t other_bytes() const;
  std::map<std::string, uint64_t> layout_bytes;  ///< size of the default set in each layout
  uint64_t default_set_bytes = 0;                ///< and its size now
  Findings findings;
};

/// Describes a checkpoint or artifact, opened by Checkpoint::open, from its headers; with `stats` also from
/// its weights. The modules of an artifact in a layout are those of its source. `only` restricts tensors and
/// modules to its matches; a pattern that matches nothing is an Error.
InspectReport inspect(const Checkpoint& checkpoint, const std::vector<NamePattern>& only, bool stats,
                      int jobs);

/// "NVFP4 checkpoint, modelopt", "twofour artifact, layout v7", and so on.
std::string describe_kind(const Checkpoint& checkpoint);

/// Describes byte `offset` of a tensor: of a layout, an NVFP4 module or any other tensor.
std::string describe_byte(const Checkpoint& checkpoint, const std::string& tensor, uint64_t offset);

}  // namespace twofour
