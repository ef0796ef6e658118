#include "lib/validate/artifact_pieces.h"

#include "formats/layouts/layouts.h"
#include "lib/threads/interrupt.h"
#include "lib/validate/rederive.h"

namespace twofour {

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
