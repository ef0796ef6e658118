#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/synth/shapes.h"

namespace twofour {

/// One weight file of a synthetic checkpoint.
struct SynthShard {
  std::string name;
  std::string header;  ///< the bytes before the data
  uint64_t data_bytes;
};

/// The place of a tensor's bytes.
struct SynthPlace {
  uint32_t shard;
  uint64_t offset;  ///< in the file
};

/// All files, tensors and offsets of a synthetic checkpoint, which are fixed before a byte is written.
/// Tensors fill one shard after another in natural order of their names.
class SynthFiles {
 public:
  SynthFiles(const SynthModel& model, uint64_t max_shard_size);

  const std::vector<SynthShard>& shards() const { return shards_; }
  size_t tensor_count() const { return tensors_.size(); }
  uint64_t data_bytes() const { return data_bytes_; }
  /// The place of a tensor, which must be in the plan.
  SynthPlace find(std::string_view tensor) const;
  /// The text of the index, with sorted names.
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

/// The tensors of a module. If modules share a scale, only the module with `first` has its tensor. `floats`
/// is the type of unquantized tensors.
std::vector<SynthTensor> module_tensors(const SynthModule& module, bool first, DType floats);

/// Writes the weight files of a synthetic checkpoint as sparse files, for programs that read only headers.
/// Headers and sizes are true, the scales of matrices are all 1, and weights are holes, so that terabytes
/// take almost no space.
void write_headers(const std::filesystem::path& directory, const SynthFiles& plan, const SynthModel& model);

}  // namespace twofour
