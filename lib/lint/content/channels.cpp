#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "formats/module_roles.h"
#include "lib/lint/content/checks.h"
#include "lib/lint/content/zeros_by_design.h"

// Linears that read the residual stream have columns whose sizes are alike in all of them, since each channel
// of the stream has a size of its own.

namespace twofour {
namespace {

/// Matrices that read one stream, by one of their sketches.
struct Readers {
  std::vector<Member*> members;
  std::vector<double> sums = std::vector<double>(std::tuple_size_v<Sketch>);
};

using Sketches = Sketch MatrixFigures::*;

/// Returns the cosine of a matrix's sketch and the sum of all others.
double cosine_with_others(const Readers& readers, const Member& m, Sketches sketch) {
  std::vector<double> others = readers.sums;
  for (size_t i = 0; i < others.size(); ++i) others[i] -= (m.figures->*sketch)[i];
  return cosine_of(m.figures->*sketch, others);
}

std::map<uint64_t, Readers> find_readers(std::span<Member> members, Sketches sketch) {
  std::map<uint64_t, Readers> all;
  const Sketch none{};
  for (Member& m : members) {
    if (!m.is_linear || m.at.layer < 0 || m.reported || is_router(m.name) || writes_residual(m.module))
      continue;
    if (m.figures->*sketch == none) continue;
    Readers& readers = all[m.numbers / std::max<uint64_t>(1, m.figures->plan.lines)];
    readers.members.push_back(&m);
    for (size_t i = 0; i < readers.sums.size(); ++i) readers.sums[i] += (m.figures->*sketch)[i];
  }
  return all;
}

/// Reports matrices whose columns follow those of others only if the two columns of each byte are exchanged.
void check_pairs(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kAlike = 0.3;
  constexpr size_t kFewest = 4;
  for (const auto& [columns, readers] : find_readers(members, &MatrixFigures::pair_sketch)) {
    if (readers.members.size() < kFewest) continue;
    std::vector<double> cosines;
    for (const Member* m : readers.members)
      cosines.push_back(cosine_with_others(readers, *m, &MatrixFigures::pair_sketch));
    const auto alike = std::ranges::count_if(cosines, [](double x) { return x > kAlike; });
    if (4 * alike < 3 * std::ssize(cosines)) continue;
    for (size_t i = 0; i < cosines.size(); ++i) {
      Member& m = *readers.members[i];
      if (cosines[i] > -kAlike) continue;
      m.reported = true;
      reporter.add(
          "odd-codes", s.at(m.figures->tensor, m.name),
          "expected columns whose sizes follow those of {} others that read the same input, found that "
          "they do if the two codes of each byte are exchanged",
          alike);
    }
  }
}

/// Reports matrices whose columns follow none of the others', though those of other layers and of the same
/// layer do.
void check_columns(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kAlike = 0.3, kUsual = 0.6, kUnlike = 0.17;
  constexpr size_t kFewest = 6, kFewestLayers = 3;
  for (const auto& [columns, readers] : find_readers(members, &MatrixFigures::column_sketch)) {
    if (readers.members.size() < kFewest) continue;
    std::vector<double> cosines;
    std::map<int64_t, size_t> layers;
    std::map<std::string, std::vector<double>> kinds;
    for (const Member* m : readers.members) {
      cosines.push_back(cosine_with_others(readers, *m, &MatrixFigures::column_sketch));
      layers[m->at.layer] += cosines.back() > kUsual;
      kinds[m->at.kind].push_back(cosines.back());
    }
    const auto alike = std::ranges::count_if(cosines, [](double x) { return x > kAlike; });
    if (8 * alike < 7 * std::ssize(cosines)) continue;
    for (size_t i = 0; i < cosines.size(); ++i) {
      Member& m = *readers.members[i];
      const std::vector<double>& kind = kinds[m.at.kind];
      // Experts that no token came to have columns of one size.
      if (cosines[i] > kUnlike || m.at.expert >= 0 || layers[m.at.layer] == 0) continue;
      if (kind.size() < kFewestLayers || robust_spread(kind).median < kUsual) continue;
      m.reported = true;
      reporter.add(
          "layer-outlier", s.at(m.figures->tensor, m.name),
          "expected columns whose sizes follow those of {} others that read the same input, found that "
          "they do not, as of a transposed matrix or of channels in another order",
          alike);
    }
  }
}

}  // namespace

void lint_channels(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  check_pairs(s, members, reporter);
  check_columns(s, members, reporter);
}

}  // namespace twofour
