#include "lib/artifact_reader.h"

namespace twofour {

PieceReader::PieceReader(const Checkpoint& artifact, const Plan& plan, size_t target)
    : artifact_(artifact), plan_(plan), target_(target) {}

std::span<const std::span<const uint8_t>> PieceReader::read(int64_t e, const Piece& piece) {
  const auto& tensors = plan_.parts_of(target_);
  storage_.resize(tensors.size());
  parts_.resize(tensors.size());
  const Target& target = plan_.targets[target_];
  for (const size_t i : tensors) {
    const OutputTensor& t = plan_.tensors[i];
    const auto expert_bytes = static_cast<int64_t>(t.info.bytes()) / target.shape.e;
    const auto p = static_cast<size_t>(t.part);
    storage_[p].resize(static_cast<size_t>(piece_bytes(plan_.recipe.layout, t.part, target, piece)));
    const int64_t begin = e * expert_bytes + piece_offset(plan_.recipe.layout, t.part, target, piece);
    artifact_.read(*artifact_.find(t.info.name), static_cast<uint64_t>(begin), storage_[p]);
    parts_[p] = storage_[p];
  }
  return parts_;
}

}  // namespace twofour
