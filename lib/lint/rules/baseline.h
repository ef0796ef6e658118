#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// A finding as it is known again in another run: rule, place and message, the message without its numbers
/// and hashes, which change as weights do.
std::string finding_identity(std::string_view rule, std::string_view where, std::string_view message);
/// 32 hexadecimal digits of it.
std::string finding_fingerprint(const LintFinding& finding);

/// Findings that are known: those of a file that --write-baseline or lint --json wrote.
struct LintBaseline {
  struct Entry {
    std::string rule, where, message;
  };
  std::string file;                      ///< by the name that was typed
  std::map<std::string, Entry> entries;  ///< by finding_identity()
};

/// Throws Error on anything that is no such file.
LintBaseline read_baseline(const std::filesystem::path& file);

/// Writes all findings of a report, consequences and known ones, too: an entry a line, sorted, so that
/// changes show line by line. Only an earlier baseline is replaced.
void write_baseline(const std::filesystem::path& file, const LintReport& report);
/// Throws Error where the file could not become a baseline. To be called before the work is done.
void check_baseline_file(const std::filesystem::path& file);

}  // namespace twofour
