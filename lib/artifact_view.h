#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/artifact/modules.h"
#include "lib/artifact/unpack.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/finding.h"

namespace twofour {

class ReferenceUnpacker;

/// The checkpoint that an artifact in a layout was made from, as far as the artifact tells: what a Checkpoint
/// that Checkpoint::open_source opened shows.
class ArtifactView {
 public:
  struct Tensor {
    TensorInfo info;
    uint32_t shard;  ///< of the artifact, that holds it or most of what it is made of
    // One of these:
    size_t stored;  ///< passed through: the artifact's tensor
    size_t module;  ///< unpacked: in ArtifactModules::modules
    enum class Kind { kStored, kCodes, kBlockScales, kGlobalScale } kind;
  };

  /// Throws Error where twofour.json does not fit the artifact.
  ArtifactView(Checkpoint artifact, ReadPath how, const ViewLimits& limits);
  ~ArtifactView();

  const Checkpoint& stored() const { return artifact_; }
  /// All tensors, sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  Json config() const;
  const Json& hf_quant_config() const { return *modules_.hf_quant_config; }
  Findings findings() const;
  /// As Checkpoint::read; throws Error also where the artifact is not what its layout makes.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const;
  /// As Checkpoint::reader_bytes.
  uint64_t reader_bytes() const;

 private:
  struct Tile;
  struct Reader;
  void add_module(size_t module);
  void read_expert(const Tensor& tensor, int64_t e, int64_t begin, std::span<uint8_t> out) const;
  void read_tile(const Tile& tile, int64_t begin, std::span<uint8_t> out) const;
  std::unique_ptr<Reader> take_reader(const Tile& tile) const;
  void give_back(std::unique_ptr<Reader> reader) const;

  Checkpoint artifact_;
  ArtifactModules modules_;
  ViewLimits limits_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<ReferenceUnpacker> reference_;  ///< where reads go through the layout's map
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Reader>> idle_;
};

}  // namespace twofour
