#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lib/lint/bytes/input.h"

namespace twofour {

/// The content of a file in place of the one to be downloaded.
struct Placeholder {
  std::string kind;  ///< the same for all files with one cause: "a Git LFS pointer"
  std::string text;  ///< the finding, and what to do
};

/// Reads the beginning of a file that engines load and finds a pointer of Git LFS, Xet or git-annex, a page
/// or message of a server, an empty file, or zeros in place of a header. Returns nullopt for any other file,
/// or if it cannot be read. Throws ReadError.
std::optional<Placeholder> find_placeholder(const std::filesystem::path& path);

/// Adds "not-downloaded" for a file that is a placeholder. Returns true if it is one.
bool report_placeholder(const std::filesystem::path& directory, const std::string& name,
                        std::string_view expected, LintReporter& reporter);

/// Reports unfinished downloads: an error if the finished file is missing or damaged, otherwise a note.
/// `named`: files that the index names; empty without an index.
void lint_downloads(const LintInput& input, const std::set<std::string>& named, LintReporter& reporter);

/// Reports weight files of full length that end in a long run of zeros.
void lint_zero_tails(const LintInput& input, LintReporter& reporter);

/// True if a directory without weight files has an unfinished download of one.
bool has_unfinished_weights(const std::filesystem::path& directory);

}  // namespace twofour
