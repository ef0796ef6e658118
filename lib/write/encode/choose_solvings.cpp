#include "lib/write/encode/choose_solvings.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "formats/error.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/source/linears/expert_stacks.h"

namespace twofour {
namespace {

/// K is a multiple of this number if statistics choose weights. FP8 has other K, too.
constexpr int64_t kSolveColumns = 16;

/// Reports statistics that were collected with other weights of the same model, since they are less accurate.
void hold_weights(const Statistics& s, bool strict, Planner& planner) {
  const std::string text = other_weights(s, planner.source, strict);
  if (text.empty()) return;
  if (strict) {
    planner.problems.add(text);
  } else {
    planner.findings.push_back(
        {Severity::kWarning, "statistics-of-other-weights", planner.source.path().string(), text});
  }
}

/// True if an entry fits its matrix. Otherwise adds a problem.
bool fits(const EncodedMatrix& m, const Solving& solving, const EncodeRule& rule, Problems& problems) {
  const Statistics& s = *rule.statistics;
  if (solving.entry != nullptr && solving.entry->k != m.k) {
    problems.add(fmt::format("{}: {}: expected K of {} (as in {}), found {}", s.path().string(),
                             solving.entry->name, m.k, m.name, solving.entry->k));
    return false;
  }
  if (solving.entry == nullptr && rule.pattern == PrunePattern::k4of8Paired && !rule.masks) {
    problems.add(
        fmt::format("{}: expected statistics with tokens for 4:8-paired, found {}", m.name, solving.why));
  }
  if (!solving.target_offset) return true;
  const TensorInfo& offset = s.tensors()[*solving.target_offset];
  if (offset.shape[0] != m.rows) {
    problems.add(fmt::format("{}: {}: expected [{}, {}] (as in {}), found {}", s.path().string(), offset.name,
                             m.rows, m.k, m.name, describe(offset.dtype, offset.shape)));
  }
  return true;
}

/// Adds a problem for masks of matrices that the checkpoint lacks, since they belong to a different model.
void hold_masks(const MaskFile& masks, Planner& planner) {
  std::set<std::string, std::less<>> names;
  for (const Linear& m : planner.linears()) {
    names.insert(m.name);
    const auto parts = m.stacked ? stack_parts(planner.source, m.name, m.n) : std::vector<StackPart>{};
    for (int64_t e = 0; e < m.e; ++e) {
      for (const StackPart& part : parts) names.insert(expert_name(m.name, e, part.leaf));
    }
  }
  for (const std::string& name : masks.modules()) {
    if (names.contains(name)) continue;
    planner.problems.add(fmt::format("{}: {}: expected masks of linears of {}, found another",
                                     masks.path().string(), name, planner.source.path().string()));
  }
}

/// The index of the mask of a matrix. If no mask fits, it is empty and a problem is added.
std::optional<size_t> mask_for(const EncodedMatrix& m, const MaskFile& masks, PrunePattern pattern,
                               Problems& problems) {
  const auto mask = masks.find(m.name);
  if (!mask) {
    problems.add(fmt::format("{}: expected a mask of {}, found none", masks.path().string(), m.name));
    return std::nullopt;
  }
  const TensorInfo& info = masks.info(*mask);
  if (info.shape != std::vector<int64_t>{m.rows, m.k}) {
    problems.add(fmt::format("{}: {}: expected [{}, {}], found {}", masks.path().string(), info.name, m.rows,
                             m.k, describe(info.dtype, info.shape)));
    return std::nullopt;
  }
  try {
    masks.check(*mask, pattern);
  } catch (const Error& e) {
    problems.add(e.what());
  }
  return mask;
}

}  // namespace

UnsolvedByReason choose_solvings(const EncodeRule& rule, bool strict_statistics,
                                 const QuantizedGroups& groups, Planner& planner) {
  UnsolvedByReason unsolved;
  const Statistics* s = rule.statistics.get();
  if (s == nullptr) return unsolved;
  Problems of_another_model;
  hold_statistics(*s, planner.source, planner.linears(), of_another_model);
  for (const std::string& line : of_another_model.lines()) planner.problems.add(line);
  if (!of_another_model.empty()) return unsolved;
  hold_weights(*s, strict_statistics, planner);
  const auto choose = [&](std::string_view linear) {
    return choose_solving(*s, linear, rule.settings->solving_settings(), rule.pattern.has_value());
  };
  for (const auto& group : groups) {
    for (size_t i = 0; i < group->matrices().size(); ++i) {
      const EncodedMatrix& m = group->matrices()[i];
      Solving solving = choose(m.name);
      if (solving.entry == nullptr && m.source->stacked) {
        Solving shared = choose(m.source->name);
        // An expert's own entry is better than no entry, even if it saw no tokens.
        if (shared.entry != nullptr || s->find(m.name) == nullptr) solving = std::move(shared);
      }
      if (!fits(m, solving, rule, planner.problems)) continue;
      if (m.k % kSolveColumns != 0) {
        solving = {};
        solving.why = fmt::format("a K that is no multiple of {}, {}", kSolveColumns, m.k);
      }
      if (!solving.why.empty()) {
        Unsolved& alike = unsolved[solving.why.substr(0, solving.why.find(','))];
        if (alike.count++ == 0) alike.first = m.name + ": " + solving.why;
      }
      group->matrix(i).solving = std::move(solving);
    }
  }
  return unsolved;
}

void choose_masks(const EncodeRule& rule, const QuantizedGroups& groups, Planner& planner) {
  const MaskFile* masks = rule.masks.get();
  if (masks == nullptr) return;
  hold_masks(*masks, planner);
  for (const auto& group : groups) {
    for (size_t i = 0; i < group->matrices().size(); ++i) {
      group->matrix(i).mask = mask_for(group->matrices()[i], *masks, *rule.pattern, planner.problems);
    }
  }
}

}  // namespace twofour
