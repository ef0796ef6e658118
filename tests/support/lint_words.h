#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "tests/support/faults/faults.h"

// Texts of reports for tests of lint's causes.

namespace twofour::lint_words {

inline LintReport lint_headers(const std::filesystem::path& path, LintLevels levels = {}) {
  Progress progress;
  return lint(path, {.headers_only = true, .levels = std::move(levels)}, progress);
}

/// A line a finding, those of consequences indented.
inline std::string text_of(const std::vector<LintFinding>& findings, const std::string& indent = "") {
  std::string text;
  for (const LintFinding& f : findings) {
    text += fmt::format("{}{}: {}\n", indent, lint_rules()[f.rule].id, f.where());
    text += text_of(f.consequences, indent + "  ");
  }
  return text;
}

inline std::set<std::string> rules_of(const std::vector<LintFinding>& findings) {
  std::set<std::string> rules;
  for (const LintFinding& f : findings) rules.insert(lint_rules()[f.rule].id);
  return rules;
}

inline void replace(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::remove(path);
  write_text(path, text);
}

inline const std::string kExpert = "model.layers.1.mlp.experts.3.";
inline const std::string kExpertFile = "model-experts.safetensors";
inline const std::string kLfs =
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\n"
    "size 4976698672\n";

/// A sound checkpoint with an expert in a file of its own.
inline Save checkpoint() {
  Save save = sound_checkpoint();
  Tensors own;
  for (auto& [file, tensors] : save.shards) {
    for (const TensorData& t : tensors)
      if (t.name.starts_with(kExpert)) own.push_back(t);
    std::erase_if(tensors, [](const TensorData& t) { return t.name.starts_with(kExpert); });
  }
  save.shards[kExpertFile] = own;
  return save;
}

}  // namespace twofour::lint_words
