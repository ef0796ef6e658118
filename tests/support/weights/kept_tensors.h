#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace twofour {

/// The rule for a layout, or for pruning to 2:4 ("prune").
inline OneRule rule_to(const std::string& layout, const std::vector<std::string>& also = {}) {
  OneRule recipe;
  recipe.to = layout;
  if (layout == "prune") recipe.pattern = "2:4";
  recipe.selection.also = parse_patterns(also);
  return recipe;
}

/// The part of a source that a layout keeps: all of it, or the pruned source.
inline ReadTensors kept_by(const std::string& layout, const std::filesystem::path& source,
                           const std::vector<std::string>& also = {}) {
  if (layout == "g8") return read_tensors(source);
  const Scratch scratch;
  convert(source, scratch / "pruned", rule_to("prune", also));
  return read_tensors(scratch / "pruned");
}

inline void check_equal(const ReadTensors& found, const ReadTensors& expected) {
  CHECK(found.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(found.count(name));
    CHECK((found.at(name) == tensor));
  }
}

/// Checks that the written tensors are those of the slow derivation.
inline void check_proven(const std::filesystem::path& source, const std::filesystem::path& out) {
  const ValidateReport report = validate_from(source, out);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

}  // namespace twofour
