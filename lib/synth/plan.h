#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect.h"
#include "lib/synth/shapes.h"

namespace twofour {

/// One weight file of a synthetic checkpoint.
struct SynthShard {
  std::string name;
  std::string header;  ///< everything before the data
  uint64_t data_bytes;
};

/// Where a tensor's bytes go.
struct SynthPlace {
  uint32_t shard;
  uint64_t offset;  ///< in the file
};

/// Every file, tensor and offset of a synthetic checkpoint, fixed before a byte is written: tensors in
/// natural order of their names fill one shard after another.
class SynthPlan {
 public:
  SynthPlan(const SynthModel& model, const Nvfp4Dialect& dialect, uint64_t max_shard_size);

  const std::vector<SynthShard>& shards() const { return shards_; }
  size_t tensor_count() const { return tensors_.size(); }
  uint64_t data_bytes() const { return data_bytes_; }
  /// The tensor must be one of the plan's.
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

}  // namespace twofour
