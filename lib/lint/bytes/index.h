#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/source/checkpoint/index_file.h"

namespace twofour {

/// The index of a directory, its entries sorted by tensor.
struct LintIndex {
  std::string name;
  IndexFile contents;
  /// The index's file of a tensor.
  std::optional<std::string_view> file_of(std::string_view tensor) const;
};

/// The index that applies: the one with the usual name, or the only one. nullopt if none is usable.
std::optional<LintIndex> read_lint_index(const std::filesystem::path& directory,
                                         const std::vector<std::string>& names, LintReporter& reporter);

/// True if a file's name marks it as one of several: "model-00002-of-00005.safetensors".
bool is_one_of_several(std::string_view file);

/// The weight files to read: the existing ones that the index names, or all files without an index.
/// `has_index_file` distinguishes an unusable index from a missing one.
std::vector<std::string> files_to_lint(const std::filesystem::path& directory,
                                       const std::optional<LintIndex>& index, bool has_index_file,
                                       const std::vector<std::string>& present, LintReporter& reporter);

/// Compares the index with the headers.
void check_lint_index(const LintIndex& index, const LintInput& input, LintReporter& reporter);

}  // namespace twofour
