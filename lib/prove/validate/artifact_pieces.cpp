#include "lib/prove/validate/artifact_pieces.h"
#include "formats/layouts/layouts.h"
#include "lib/base/threads/interrupt.h"
#include "lib/prove/expected/rederive.h"

namespace twofour {

PieceReader::PieceReader(const Checkpoint& artifact, const LayoutMatrix& matrix)
    : artifact_(artifact), matrix_(matrix) {
  const std::vector<TensorInfo> outputs = matrix.outputs(artifact);
  for (int p = 0; p < matrix.part_count(); ++p) {
    tensors_.push_back(*artifact.find(outputs[static_cast<size_t>(p)].name));
  }
}

std::span<const std::span<const uint8_t>> PieceReader::read(int64_t e, const Piece& piece) {
  storage_.resize(tensors_.size());
  parts_.resize(tensors_.size());
  const OutputMatrix& target = matrix_.target;
  for (int part = 0; part < matrix_.part_count(); ++part) {
    const auto p = static_cast<size_t>(part);
    const auto expert_bytes = static_cast<int64_t>(artifact_.tensors()[tensors_[p]].bytes()) / target.shape.e;
    storage_[p].resize(static_cast<size_t>(piece_bytes(matrix_.layout, part, target, piece)));
    const int64_t begin = e * expert_bytes + piece_offset(matrix_.layout, part, target, piece);
    artifact_.read(tensors_[p], static_cast<uint64_t>(begin), storage_[p]);
    parts_[p] = storage_[p];
  }
  return parts_;
}

ArtifactRows::ArtifactRows(const Checkpoint& artifact, const ArtifactMatrix& matrix)
    : artifact_(artifact), matrix_(matrix), global_scales_(static_cast<size_t>(matrix.shape.e)) {
  artifact.read(matrix.global_scale, 0,
                {reinterpret_cast<uint8_t*>(global_scales_.data()), global_scales_.size() * sizeof(float)});
}

WeightRows ArtifactRows::rows() {
  const Shape s = matrix_.shape;
  return {s.e, s.n, s.k, [this](int64_t e) { load(e); },
          [this](int64_t n, std::span<double> out) {
            const auto groups = static_cast<size_t>(matrix_.shape.groups());
            dequantize_groups(std::span(groups_).subspan(static_cast<size_t>(n) * groups, groups),
                              global_scale_, out);
          }};
}

void ArtifactRows::load(int64_t e) {
  check_interrupt();
  const Shape one{1, matrix_.shape.n, matrix_.shape.k, matrix_.shape.gated};
  std::vector<std::vector<uint8_t>> storage;
  with_layout(matrix_.layout, [&]<class L>() {
    for (size_t p = 0; p < matrix_.parts.size(); ++p) {
      const auto bytes = static_cast<uint64_t>(L::part(static_cast<int>(p), one).bytes());
      storage.emplace_back(bytes);
      artifact_.read(matrix_.parts[p], static_cast<uint64_t>(e) * bytes, storage.back());
    }
  });
  const std::vector<std::span<const uint8_t>> parts(storage.begin(), storage.end());
  groups_ = unpack_piece(matrix_.layout, one, parts);
  global_scale_ = static_cast<double>(global_scales_[static_cast<size_t>(e)]);
}

}  // namespace twofour
