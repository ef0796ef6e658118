#include <fmt/format.h>

#include <optional>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/lint/content/against_others.h"
#include "lib/lint/content/checks.h"
#include "lib/look/diff/configs.h"
#include "lib/look/metrics/moved_weights.h"
#include "lib/recipe/artifact/open_unpacked.h"

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
    case Moved::kTransposed:
      return "moved-rows";
    case Moved::kNibbles:
      return "nibble-swap";
    case Moved::kScales:
      return "scale-order";
    case Moved::kFactor:
      return "other-weights";
    case Moved::kSigns:
      break;
  }
  return "turned-signs";
}

/// Reports matrices that have the same name and nothing in common. If most have nothing in common, the
/// checkpoint is of another model.
void report_unlike(const MovedReport& report, const Matrices& own, const LintInput& s,
                   const Checkpoint& subject, LintReporter& reporter) {
  const size_t count = report.unlike.size();
  if (2 * count > report.compared) {
    reporter.add("other-weights", {"", report.unlike[0]},
                 "expected another checkpoint of the same model, found that {} of {} matrices of "
                 "the same names have nothing in common",
                 count, report.compared);
    return;
  }
  for (const std::string& name : report.unlike) {
    const Linear& module = own.module_of(own.all().at(name));
    const auto tensor = s.find(subject.tensors()[module.weight].name);
    reporter.add(
        "other-weights", {tensor ? s.file_of(*tensor) : "", name},
        "expected the weights that OTHER has under this name, found that the two have nothing in common");
  }
}

/// Reports keys of config.json and generation_config.json whose values differ.
void lint_other_config(const Matrices& own, const Matrices& others, LintReporter& reporter) {
  const auto text = [](const std::string& value) { return value.empty() ? "nothing" : value.c_str(); };
  for (const ConfigDifference& d : compare_configs(own, others)) {
    reporter.add(d.counts ? "other-config" : "other-config-key", {d.file, d.key},
                 "expected {} as OTHER has, found {}", text(d.b), text(d.a));
  }
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
    // Its problems are already reported.
    if (!reporter.reported_names().empty()) return;
    throw;
  }
  Findings left_out;  // modules that cannot be read; other rules report them
  const Matrices own(*subject, left_out), others(reference, left_out);
  const MovedReport report = find_moved(own, others, "OTHER");
  lint_other_config(own, others, reporter);
  if (report.compared == 0)
    throw Error(
        fmt::format("{} {}: expected linears of the same names and shapes as the {} of {}, found none",
                    options::kAgainst, other.string(), own.all().size(), path.string()));
  LayerFactors factors;
  std::set<std::string> moved;
  for (const MovedWeights& m : report.moved) {
    if (m.how == Moved::kFactor) factors[layer_of(m.name)].push_back(m.factor);
    for (const auto& [name, place] : m.pairs) moved.insert(name);
  }
  const LayerFactors norms = lint_other_tensors(*subject, own, reference, factors, moved, reporter);
  report_unlike(report, own, s, *subject, reporter);
  for (const MovedWeights& m : report.moved) {
    if (m.how == Moved::kFactor && is_made_up(norms, m.name, m.factor)) continue;
    const auto matrix = own.all().find(m.pairs.empty() ? m.name : m.pairs[0].first);
    const auto tensor = matrix != own.all().end()
                            ? s.find(subject->tensors()[own.module_of(matrix->second).weight].name)
                            : std::nullopt;
    reporter.add(rule_of(m.how), {tensor ? s.file_of(*tensor) : "", m.name},
                 "expected the weights that OTHER has under this name, found that {}", m.text);
  }
}

}  // namespace twofour
