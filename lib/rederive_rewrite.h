#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/pack/prune_pack.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/plan.h"

namespace twofour {

/// The slow path to rewritten tensors, for validation: element by element, no code in common with Deriver,
/// only the formats.
class SlowDeriver {
 public:
  SlowDeriver(const Checkpoint& source, const Plan& plan, const OutputTensor& tensor);

  /// Reads what bytes [begin, end) of the tensor come from. The following speak of these bytes alone.
  void load(uint64_t begin, uint64_t end);
  /// Any byte of them.
  uint8_t byte_at(uint64_t i) const;

  /// kPrune: what pruning did to the chunk (quad or octet) that begins with byte i; nothing where none
  /// begins.
  PruneStats stats_at(uint64_t i) const;
  /// kPrune: codes of magnitude 0 that the source has in byte i.
  unsigned zeros_at(uint64_t i) const;
  /// kPrune: the expert that byte i belongs to.
  size_t expert_at(uint64_t i) const;

 private:
  /// Some bytes of a tensor of the source.
  struct Window {
    uint64_t first = 0;
    std::vector<uint8_t> bytes;
    uint8_t operator[](uint64_t i) const { return bytes[i - first]; }
  };
  void load(Window& window, size_t tensor, uint64_t begin, uint64_t end);
  /// The chunk of the pattern that code byte i is in: its bytes, lowest k first, and the place of i.
  struct Chunk {
    uint32_t codes;
    int place, bytes;
  };
  Chunk chunk_at(uint64_t i) const;
  uint32_t kept_of(const Chunk& chunk) const;
  float scalar_at(uint64_t i) const;
  /// Weight i as BF16.
  uint16_t weight_at(uint64_t i) const;

  const Checkpoint& source_;
  const OutputTensor& tensor_;
  const ModulePlan* plan_ = nullptr;
  const Nvfp4Module* module_ = nullptr;
  bool pairs_;
  uint64_t line_ = 1;  ///< code bytes from one k to the next but one
  Window main_, scales_;
};

}  // namespace twofour
