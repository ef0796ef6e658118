#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "lib/base/findings/finding.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// One tensor of the artifact.
struct OutputTensor {
  TensorInfo info;          ///< its offsets count within the data of its file
  uint32_t transformation;  ///< index in Plan::transformations of its writer
  int part;                 ///< index among the parts of that transformation
  uint32_t file;            ///< index in Plan::files
};

/// One weight file of the artifact.
struct OutputFile {
  std::string name;
  std::string header;  ///< the bytes before the data
  uint64_t data_bytes = 0;
  size_t first_tensor = 0, tensor_count = 0;  ///< range of its tensors in Plan::tensors
  uint64_t size() const { return header.size() + data_bytes; }
};

/// A layout that the artifact has, as its entry in config.json describes it.
struct LayoutGroup {
  std::string layout, pattern;
  std::vector<std::string> modules;  ///< globs or names of modules
};

/// The configuration by which loaders read the artifact.
struct ConfigFiles {
  std::map<std::string, std::string> texts;  ///< names and contents of the files that are written
  std::vector<LayoutGroup> layouts;          ///< the layouts of the artifact
  bool keeps_source = false;                 ///< the source's configuration files are copied
  /// hf_quant_config.json of the checkpoint that an artifact in layouts stands for. It is absent if it equals
  /// the source's.
  std::optional<Json> shown_hf_quant_config;
};

/// Every file, tensor and offset of an artifact, fixed before a byte is written.
struct Plan {
  Recipe recipe;        ///< with every default filled in
  std::string summary;  ///< the result of the rules, for messages: "v7", "2:4 NVFP4 (modelopt)"
  MemoryLimits limits;
  Transformations transformations;
  /// In the order of their numbers, by which OutputTensor::file, ShardRecord::file and split_tasks() count.
  std::vector<OutputFile> files;
  std::vector<OutputTensor> tensors;  ///< in the order of files and offsets
  ConfigFiles config;
  std::map<std::string, uint64_t> auxiliary_files;  ///< names and sizes in bytes of the source's other files,
                                                    ///< which are copied
  std::string readme;         ///< name of the file that describes the artifact; empty if none is written
  Findings findings;          ///< folds, NVFP4 that is passed through, files that are
                              ///< left behind
  uint64_t data_bytes = 0;    ///< size of all tensors that are written
  uint64_t read_bytes = 0;    ///< bytes of the source that all units read
  uint64_t reader_bytes = 0;  ///< memory of a worker's reader (Checkpoint::reader_bytes), beside its own
                              ///< buffers
  uint64_t unit_bytes = 0;    ///< largest buffers that a unit needs, in bytes
  bool solves = false;        ///< weights are chosen by statistics
  uint64_t source_names = 0;  ///< number of the source's tensors that transformations name

  /// The indices in `tensors` of the parts of a transformation.
  std::span<const uint32_t> parts_of(size_t transformation) const {
    return std::span(part_places_)
        .subspan(first_part_[transformation], first_part_[transformation + 1] - first_part_[transformation]);
  }
  /// The upper bound of the run's memory in bytes, with `jobs` jobs.
  uint64_t peak_memory(int jobs) const;
  /// The number of workers that the promised memory allows, with `jobs` jobs.
  int workers(int jobs) const;
  /// The number of threads of each worker's solver. It may be above 1, since there may be fewer workers than
  /// jobs.
  int solver_threads(int jobs) const;
  uint64_t worker_bytes() const;

  std::vector<uint32_t> first_part_, part_places_;  ///< parts_of() returns ranges of these
};

/// Plans an artifact. Reads only headers, global and input scales and, if twofour wrote the source, its
/// twofour.json. Throws Error if a rule cannot take the source, and if that twofour.json is damaged or
/// belongs to another checkpoint.
Plan make_plan(const Checkpoint& source, const Recipe& recipe, const MemoryLimits& limits = {});

}  // namespace twofour
