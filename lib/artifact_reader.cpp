#include "lib/artifact_reader.h"

namespace twofour {

PieceReader::PieceReader(const Checkpoint& artifact, const Plan& plan, size_t target)
    : artifact_(artifact), plan_(plan), target_(target) {}

std::span<const std::span<const uint8_t>> PieceReader::read(int64_t e, int64_t k0, int64_t k) {
  const auto& tensors = plan_.parts_of(target_);
  storage_.resize(tensors.size());
  parts_.resize(tensors.size());
  const Shape shape = plan_.targets[target_].shape;
  for (const size_t i : tensors) {
    const OutputTensor& t = plan_.tensors[i];
    const auto expert_bytes = static_cast<int64_t>(t.info.bytes()) / shape.e;
    const auto p = static_cast<size_t>(t.part);
    storage_[p].resize(static_cast<size_t>(expert_bytes * k / shape.k));
    const int64_t begin = e * expert_bytes + expert_bytes * k0 / shape.k;
    artifact_.read(*artifact_.find(t.info.name), static_cast<uint64_t>(begin), storage_[p]);
    parts_[p] = storage_[p];
  }
  return parts_;
}

}  // namespace twofour
