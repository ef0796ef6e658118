#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

enum class Severity { kNote, kWarning, kError };

constexpr std::string_view severity_name(Severity severity) {
  return severity == Severity::kNote ? "note" : severity == Severity::kWarning ? "warning" : "error";
}

/// A fact that a user should know. It does not stop a run.
struct Finding {
  Severity severity;
  std::string id;       ///< a stable name: "unequal-global-scales"
  std::string where;    ///< file, tensor or module
  std::string message;  ///< the problem and its treatment
  bool operator==(const Finding&) const = default;
};
using Findings = std::vector<Finding>;

/// A count with its noun: "1 file", "3 files". `nouns` is the plural, needed only if it is not `noun` with an
/// s.
inline std::string counted(uint64_t count, const std::string& noun, const std::string& nouns = "") {
  if (count == 1) return "1 " + noun;
  return std::to_string(count) + " " + (nouns.empty() ? noun + "s" : nouns);
}

}  // namespace twofour
