#pragma once
#include <filesystem>

#include "lib/base/threads/progress.h"
#include "lib/lint/rules/rules.h"

namespace twofour {

struct LintOptions {
  int jobs = 1;
  bool headers_only = false;  ///< reads headers, index and configs only, no bytes of tensors
  LintLevels levels{};
  const LintBaseline* baseline = nullptr;  ///< known findings; nullptr: none
  std::filesystem::path against{};         ///< a checkpoint of the same model to compare with; empty: none
  bool figures = false;  ///< also computes the report's figures, which reads the weights a second time
};

/// Checks a checkpoint or artifact, a directory or one file, by every rule. Problems that Checkpoint::open
/// refuses are findings here. Throws Error if there is nothing to lint (no such path, no weight files, a file
/// that is no safetensors file) and on unknown rule ids.
LintReport lint(const std::filesystem::path& path, const LintOptions& options, Progress& progress);

}  // namespace twofour
