#include <fmt/format.h>

#include <algorithm>

#include "lib/write/transform/encoder.h"

// Rows that statistics solve in formats without a global scale.

namespace twofour {

bool Encoder::is_solved(const EncodedMatrix& m, const Survey& survey) const {
  constexpr float kSmallest = 0x1p-100f,
                  kLargest = 0x1p100f;  // of given scales, whose reciprocals are used
  if (m.solving.method == Solving::Method::kPlain || may_cast_ || !is_solvable(survey.amax)) return false;
  return std::all_of(survey.tiles.begin(), survey.tiles.end(),
                     [](const Tile& t) { return t.scale >= kSmallest && t.scale <= kLargest; });
}

void Encoder::note_unsolved(Results& results) const {
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedMatrix& m = group_->matrices()[i];
    const Survey& survey = surveys_[i];
    const bool wanted = m.solving.method != Solving::Method::kPlain && !may_cast_ && survey.amax > 0;
    if (!wanted || is_solved(m, survey)) continue;
    results[i].findings.push_back({Severity::kWarning, "not-solved", m.name,
                                   fmt::format("weights up to {} are too small or too large for squares: "
                                               "they are chosen without "
                                               "statistics",
                                               survey.amax)});
  }
}

void Encoder::solve_rounded(std::span<const float> rows, std::span<const float> target, uint8_t zero_scale,
                            std::span<const float> steps, const std::function<void()>& decode,
                            EncodedResult& result) {
  const bool measures = rule_.settings->measures_rounding;
  OutputLoss rounded, chosen;
  if (measures) solver_.add_loss(target, back_, rounded);
  solver_.solve(Arithmetic::modelopt, 1, zero_scale, target, {}, codes_.data(), scales_.data(), steps);
  decode();
  solver_.add_loss(rows, back_, result.output);
  if (!measures) return;
  solver_.add_loss(target, back_, chosen);
  result.output.target_loss += chosen.loss;
  result.output.rounded_loss += rounded.loss;
}

}  // namespace twofour
