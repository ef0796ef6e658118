#include "lib/lint/rules/baseline.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/write/output/destination.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "{\"twofour_baseline\": 1, \"findings\": [";
constexpr uint64_t kLongest = 256u << 20;  ///< bytes of the largest baseline, enough for a million findings

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Returns the length in bytes of the hash at the beginning of a text. A hash has at least 16 hexadecimal
/// digits. 0: there is none.
size_t hash_length(std::string_view text) {
  const size_t length = std::min(text.find_first_not_of("0123456789abcdef"), text.size());
  return length >= 16 ? length : 0;
}

/// Returns the length in bytes of the number at the beginning of a text: "12", "0.5", "1.5e-07", "4,096".
size_t number_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const bool more = length + 1 < text.size() && is_digit(text[length + 1]);
    const bool part = is_digit(text[length]) || ((text[length] == '.' || text[length] == ',') && more);
    if (!part) break;
    ++length;
  }
  if (length < text.size() && text[length] == 'e') {
    size_t exponent = length + 1;
    if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    const size_t digits = exponent;
    while (exponent < text.size() && is_digit(text[exponent])) ++exponent;
    if (exponent > digits) length = exponent;
  }
  return length;
}

std::string without_figures(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    size_t length = hash_length(message);
    if (length == 0 && is_digit(message[0])) length = number_length(message);
    text += length > 0 ? '0' : message[0];
    message.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

std::string text_at(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key) || !json[key].is_string())
    throw Error(fmt::format("{}: expected a string {} in each finding, found none", where, key));
  return json[key].get<std::string>();
}

void add_entries(const Json& findings, const std::string& where, LintBaseline& baseline) {
  if (!findings.is_array())
    throw Error(fmt::format("{}: expected a list of findings, found {}", where, findings.type_name()));
  for (const Json& f : findings) {
    if (!f.is_object())
      throw Error(fmt::format("{}: expected an object for each finding, found {}", where, f.type_name()));
    LintBaseline::Entry entry{text_at(f, "rule", where), text_at(f, "where", where),
                              text_at(f, "message", where)};
    std::string identity = finding_identity(entry.rule, entry.where, entry.message);
    baseline.entries.emplace(std::move(identity), std::move(entry));
    for (const char* more : {"consequences", "known"})
      if (f.contains(more)) add_entries(f[more], where, baseline);
  }
}

void collect(const std::vector<LintFinding>& findings, std::map<std::string, LintBaseline::Entry>& entries) {
  for (const LintFinding& f : findings) {
    const char* rule = lint_rules()[f.rule].id;
    if (std::string_view(rule) != "baseline-stale")
      entries.emplace(finding_identity(rule, f.where(), f.message),
                      LintBaseline::Entry{rule, f.where(), f.message});
    collect(f.consequences, entries);
  }
}

bool is_baseline(const fs::path& file) {
  const InputFile input(file);
  std::string head(std::min<uint64_t>(input.size(), kMark.size()), '\0');
  input.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return head == kMark;
}

}  // namespace

std::string finding_identity(std::string_view rule, std::string_view where, std::string_view message) {
  return fmt::format("{}\n{}\n{}", rule, where, without_figures(message));
}

std::string finding_fingerprint(const LintFinding& f) {
  return hash_text(finding_identity(lint_rules()[f.rule].id, f.where(), f.message)).hex();
}

LintBaseline read_baseline(const fs::path& file) {
  const std::string where = file.string();
  const Json json = parse_json(where, read_text(file, kLongest));
  if (!json.is_object() || !json.contains("findings"))
    throw Error(fmt::format("{}: expected a file that {} or lint {} wrote, found no list of findings", where,
                            options::kWriteBaseline, options::kJson));
  LintBaseline baseline{where, {}};
  add_entries(json["findings"], where, baseline);
  if (json.contains("known") && json["known"].is_array()) add_entries(json["known"], where, baseline);
  return baseline;
}

void check_baseline_file(const fs::path& file) { check_output_file(file, "baseline", is_baseline); }

void write_baseline(const fs::path& file, const LintReport& report) {
  check_baseline_file(file);
  std::map<std::string, LintBaseline::Entry> entries;
  collect(report.findings, entries);
  collect(report.known, entries);
  std::string text(kMark);
  for (const auto& [identity, e] : entries) {
    text += text.back() == '[' ? "\n" : ",\n";
    text += json_line({{"rule", e.rule}, {"where", e.where}, {"message", e.message}});
  }
  write_text(file, text + "\n]}\n");
}

}  // namespace twofour
