#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "lib/lint/rules/rules.h"

namespace twofour {

/// Returns the identity of a finding across runs. It consists of rule, place and message. Numbers and hashes
/// in the message are left out, since they change with the weights.
std::string finding_identity(std::string_view rule, std::string_view where, std::string_view message);
/// Returns the hash of a finding's identity, 32 hexadecimal digits.
std::string finding_fingerprint(const LintFinding& finding);

/// Known findings, read from a file that --write-baseline or lint --json wrote.
struct LintBaseline {
  struct Entry {
    std::string rule, where, message;
  };
  std::string file;                      ///< name on the command line
  std::map<std::string, Entry> entries;  ///< by finding_identity()
};

/// Reads a baseline. Throws Error if the file is not one.
LintBaseline read_baseline(const std::filesystem::path& file);

/// Writes all findings of a report, including consequences and known findings. The file has one sorted entry
/// on each line, so that changes show line by line. An existing file is replaced only if it is a baseline.
void write_baseline(const std::filesystem::path& file, const LintReport& report);
/// Throws Error if the file cannot become a baseline. Call it before the work.
void check_baseline_file(const std::filesystem::path& file);

}  // namespace twofour
