#pragma once
#include <filesystem>

#include "lib/base/threads/progress.h"
#include "lib/lint/rules/rules.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

class WrittenWeights;

struct LintOptions {
  int jobs = 1;
  bool headers_only = false;  ///< only headers, index and configs are read, but no bytes of tensors
  LintLevels levels{};
  const LintBaseline* baseline = nullptr;  ///< known findings; nullptr: there are none
  /// Another checkpoint of the same model, to compare with; empty: there is none.
  std::filesystem::path against{};
  /// Weights that were counted while the checkpoint was written; nullptr without them.
  const WrittenWeights* written = nullptr;
  bool figures = false;  ///< the report's figures are computed, too, which reads the weights a second time
};

/// Checks a checkpoint or artifact, which is a directory or one file, by every rule. Problems that
/// Checkpoint::open() refuses are findings here. Throws Error if there is nothing to lint (the path does not
/// exist, it has no weight files, or the file is not a safetensors file) and on unknown rule ids.
LintReport lint(const std::filesystem::path& path, const LintOptions& options, Progress& progress);

/// Checks a checkpoint that is not on disk by the rules about names, shapes, configs and small scales. Rules
/// about files beside the weights see the files of view.path().
LintReport lint_outline(const Checkpoint& view, const LintLevels& levels = {});

}  // namespace twofour
