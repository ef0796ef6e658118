#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/synth/shapes.h"

namespace twofour {

/// One weight file of a synthetic checkpoint.
struct SynthShard {
  std::string name;
  std::string header;  ///< everything before the data
  uint64_t data_bytes;
};

/// The place of a tensor's bytes.
struct SynthPlace {
  uint32_t shard;
  uint64_t offset;  ///< in the file
};

/// Every file, tensor and offset of a synthetic checkpoint, fixed before a byte is written. Tensors fill one
/// shard after another in natural order of their names.
class SynthFiles {
 public:
  SynthFiles(const SynthModel& model, uint64_t max_shard_size);

  const std::vector<SynthShard>& shards() const { return shards_; }
  size_t tensor_count() const { return tensors_.size(); }
  uint64_t data_bytes() const { return data_bytes_; }
  /// The place of a tensor, which must be one of the plan's.
  SynthPlace find(std::string_view tensor) const;
  /// Text of the index, its names sorted.
  std::string index() const;

 private:
  struct Tensor {
    std::string name;
    SynthPlace place;
  };
  void add_shard(std::vector<TensorInfo> tensors);

  std::vector<SynthShard> shards_;
  std::vector<Tensor> tensors_;  ///< sorted by name
  uint64_t data_bytes_ = 0;
};

/// The tensors of a module. If modules share a scale, the `first` has it.
std::vector<SynthTensor> module_tensors(const SynthModule& module, bool first, DType floats);

/// The files beside the weights, name and text: the published configuration, and a tokenizer of one token,
/// which is enough for loaders to start.
std::vector<std::pair<std::string, std::string>> synth_auxiliary_files(const SynthModel& model);

/// Writes the weight files of a synthetic checkpoint with true headers, sizes and scales of matrices (all 1),
/// but holes in place of weights: terabytes that take almost no space, for programs that read only headers.
void write_headers(const std::filesystem::path& directory, const SynthFiles& plan, const SynthModel& model);

}  // namespace twofour
