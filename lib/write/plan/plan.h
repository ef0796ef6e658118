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
  TensorInfo info;          ///< offsets within its file's data
  uint32_t transformation;  ///< in Plan::transformations, that writes it
  int part;                 ///< of the transformation
  uint32_t file;            ///< in Plan::files
};

/// One weight file of the artifact.
struct OutputFile {
  std::string name;
  std::string header;  ///< everything before the data
  uint64_t data_bytes = 0;
  size_t first_tensor = 0, tensor_count = 0;  ///< in Plan::tensors
  uint64_t size() const { return header.size() + data_bytes; }
};

/// A layout that is written, as its entry in config.json describes it.
struct LayoutGroup {
  std::string layout, pattern;
  std::vector<std::string> modules;  ///< as globs or names
};

/// The configuration by which loaders read the artifact.
struct ConfigFiles {
  std::map<std::string, std::string> texts;  ///< files that are written
  std::vector<LayoutGroup> layouts;          ///< that are written
  bool keeps_source = false;                 ///< the source's files are copied
  /// hf_quant_config.json of the checkpoint that an artifact in layouts shows, if it is not the source's.
  std::optional<Json> shown_hf_quant_config;
};

/// Every file, tensor and offset of an artifact, fixed before a byte is written.
struct Plan {
  Recipe recipe;        ///< with every default filled in
  std::string summary;  ///< what its rules make, for people: "v7", "2:4 NVFP4 (modelopt)"
  MemoryLimits limits;
  Transformations transformations;
  std::vector<OutputFile> files;
  std::vector<OutputTensor> tensors;  ///< in file and offset order
  ConfigFiles config;
  std::map<std::string, uint64_t> auxiliary_files;  ///< other files of the source that are copied: sizes
  Findings findings;                                ///< folds, passed-through NVFP4, files left behind
  uint64_t data_bytes = 0;                          ///< of all tensors written
  uint64_t read_bytes = 0;                          ///< of the source, by all units
  uint64_t reader_bytes = 0;  ///< of a worker, beside its own buffers: Checkpoint::reader_bytes
  uint64_t unit_bytes = 0;    ///< largest buffers that a unit takes
  bool solves = false;        ///< statistics choose weights
  uint64_t source_names = 0;  ///< tensors of the source that transformations name

  /// Where the parts of a transformation are in `tensors`.
  std::span<const uint32_t> parts_of(size_t transformation) const {
    return std::span(part_places_)
        .subspan(first_part_[transformation], first_part_[transformation + 1] - first_part_[transformation]);
  }
  /// Upper bound of the run's memory with this number of jobs.
  uint64_t peak_memory(int jobs) const;
  /// Workers that the promised memory allows.
  int workers(int jobs) const;
  /// Threads of each worker's solver, since there may be fewer workers than jobs.
  int solver_threads(int jobs) const;
  uint64_t worker_bytes() const;

  std::vector<uint32_t> first_part_, part_places_;  ///< returned by parts_of()
};

/// Plans an artifact. Reads only headers, global and input scales and, if twofour wrote the source, its
/// twofour.json. Throws Error if a rule cannot take the source, and if that twofour.json is damaged or of
/// another checkpoint.
Plan make_plan(const Checkpoint& source, const Recipe& recipe, const MemoryLimits& limits = {});

}  // namespace twofour
