#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lib/lint/bytes/input.h"

namespace twofour {

/// What a file holds in place of what was to be downloaded.
struct Placeholder {
  std::string kind;  ///< the same for all files with one cause: "a Git LFS pointer"
  std::string text;  ///< what was found, and what to do
};

/// Reads the beginning of a file that engines load: a pointer of Git LFS, Xet or git-annex, a page or message
/// of a server, nothing at all, or zeros in place of a header. Nothing where it may be what it is to be, or
/// cannot be read. Throws ReadError.
std::optional<Placeholder> find_placeholder(const std::filesystem::path& path);

/// Adds "not-downloaded" for a file that is a placeholder. Whether it is one.
bool report_placeholder(const std::filesystem::path& directory, const std::string& name,
                        std::string_view expected, LintReporter& reporter);

/// Files that a download left unfinished, and what they were to become: an error where that is missing or
/// damaged, else a note. `named`: files that the index names; none without an index.
void lint_downloads(const LintInput& input, const std::set<std::string>& named, LintReporter& reporter);

/// Weight files of full length that are zeros from somewhere on to their end.
void lint_zero_tails(const LintInput& input, LintReporter& reporter);

/// Whether a directory without weight files has begun to download one.
bool has_unfinished_weights(const std::filesystem::path& directory);

}  // namespace twofour
