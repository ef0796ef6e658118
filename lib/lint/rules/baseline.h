#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// The identity of a finding across runs: rule, place and message, without the message's numbers and hashes,
/// which change with the weights.
std::string finding_identity(std::string_view rule, std::string_view where, std::string_view message);
/// The identity's hash, 32 hexadecimal digits.
std::string finding_fingerprint(const LintFinding& finding);

/// Known findings, from a file of --write-baseline or lint --json.
struct LintBaseline {
  struct Entry {
    std::string rule, where, message;
  };
  std::string file;                      ///< as named on the command line
  std::map<std::string, Entry> entries;  ///< by finding_identity()
};

/// Reads a baseline. Throws Error on any other file.
LintBaseline read_baseline(const std::filesystem::path& file);

/// Writes all findings of a report, consequences and known ones, too: an entry a line, sorted, so that
/// changes show line by line. Only an earlier baseline is replaced.
void write_baseline(const std::filesystem::path& file, const LintReport& report);
/// Throws Error if the file could not become a baseline. Call it before the work.
void check_baseline_file(const std::filesystem::path& file);

}  // namespace twofour
