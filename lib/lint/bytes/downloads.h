#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lib/lint/bytes/input.h"

namespace twofour {

/// The content of a file that stands in place of the file to be downloaded.
struct Placeholder {
  std::string kind;  ///< the same text for all files with one cause: "a Git LFS pointer"
  std::string text;  ///< the message of the finding, with advice
};

/// Reads the beginning of a file that engines load, and recognizes placeholders: a pointer of Git LFS, Xet or
/// git-annex, a page or message of a server, an empty file, or zeros in place of a header. Returns nullopt
/// for any other file, or if the file cannot be read. Throws ReadError.
std::optional<Placeholder> find_placeholder(const std::filesystem::path& path);

/// Reports "not-downloaded" if a file is a placeholder. Returns true if it is one.
bool report_placeholder(const std::filesystem::path& directory, const std::string& name,
                        std::string_view expected, LintReporter& reporter);

/// Reports unfinished downloads. They are errors if the finished file is missing or damaged, otherwise notes.
/// `named` are the files that the index names; it is empty if there is no index.
void lint_downloads(const LintInput& input, const std::set<std::string>& named, LintReporter& reporter);

/// Reports weight files that have their full length but end in a long run of zeros.
void lint_zero_tails(const LintInput& input, LintReporter& reporter);

/// True if a directory has no weight files but an unfinished download of a weight file.
bool has_unfinished_weights(const std::filesystem::path& directory);

}  // namespace twofour
