#pragma once
#include <filesystem>

#include "lib/lint/rules/rules.h"
#include "lib/threads/progress.h"

namespace twofour {

struct LintOptions {
  int jobs = 1;
  bool headers_only = false;  ///< headers, index and configs; no byte of a tensor
  LintLevels levels{};
  const LintBaseline* baseline = nullptr;  ///< findings that are known; none
  std::filesystem::path against{};         ///< a checkpoint of the same model to compare with; empty: none
  bool figures = false;  ///< those of the report, too, which reads the weights a second time
};

/// Holds a checkpoint or artifact, a directory or one file, against every rule. What Checkpoint::open refuses
/// is a finding here. Throws Error where there is nothing to lint: no such path, no weight files, a file that
/// is no safetensors file; and on unknown rule ids.
LintReport lint(const std::filesystem::path& path, const LintOptions& options, Progress& progress);

}  // namespace twofour
