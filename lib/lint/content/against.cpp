#include <fmt/format.h>

#include <optional>

#include "formats/error.h"
#include "lib/artifact/open_source.h"
#include "lib/lint/content/checks.h"
#include "lib/metrics/moved_weights.h"

namespace twofour {
namespace {

const char* rule_of(Moved how) {
  switch (how) {
    case Moved::kExperts:
    case Moved::kLayers:
    case Moved::kOther:
      return "moved-weights";
    case Moved::kRenumbered:
      return "renumbered-experts";
    case Moved::kGateUp:
      return "gate-up-swap";
    case Moved::kRows:
    case Moved::kColumns:
      return "moved-rows";
    case Moved::kNibbles:
      return "nibble-swap";
    case Moved::kScales:
      return "scale-order";
    case Moved::kSigns:
      break;
  }
  return "turned-signs";
}

}  // namespace

void lint_against(const LintInput& s, const std::filesystem::path& path, const std::filesystem::path& other,
                  LintReporter& reporter) {
  const Checkpoint reference = open_source(other);
  std::optional<Checkpoint> subject;
  try {
    subject.emplace(open_source(path));
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    // What is wrong with it was reported.
    if (!reporter.reported_names().empty()) return;
    throw;
  }
  Findings left_out;  // modules that cannot be read, which rules of their own report
  const Matrices own(*subject, left_out), others(reference, left_out);
  const MovedReport report = find_moved(own, others, "OTHER");
  if (report.compared == 0)
    throw Error(
        fmt::format("--against {}: expected linears of the same names and shapes as the {} of {}, found none",
                    other.string(), own.all().size(), path.string()));
  for (const MovedWeights& m : report.moved) {
    const auto matrix = own.all().find(m.pairs.empty() ? m.name : m.pairs[0].first);
    const auto tensor = matrix != own.all().end()
                            ? s.find(subject->tensors()[own.module_of(matrix->second).weight].name)
                            : std::nullopt;
    reporter.add(rule_of(m.how), tensor ? s.file_of(*tensor) : "", m.name,
                 fmt::format("expected the weights that OTHER has under this name, found that {}", m.text));
  }
}

}  // namespace twofour
