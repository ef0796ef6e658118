#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "formats/json.h"
#include "lib/base/findings/version.h"
#include "lib/lint/rules/baseline.h"

namespace twofour {
namespace {

/// Returns a path as a URI reference. SARIF has no plain paths.
std::string uri_of(const std::string& path) {
  std::string uri;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 ||
                                       std::string_view("-._~/").find(c) != std::string_view::npos);
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

Json rule_to_json(const LintRule& rule) {
  Json json = {{"id", rule.id},
               {"shortDescription", {{"text", rule.what}}},
               {"fullDescription", {{"text", fmt::format("{} {}", rule.what, rule.why)}}},
               {"help", {{"text", fmt::format("{} To do: {}", rule.why, rule.fix)}}},
               {"defaultConfiguration", {{"level", severity_name(rule.severity)}}}};
  if (rule.opt_in) json["defaultConfiguration"]["enabled"] = false;
  if (*rule.reference != '\0') json["helpUri"] = rule.reference;
  return json;
}

std::string message_of(const LintFinding& f) {
  return f.name.empty() ? f.message : f.name + ": " + f.message;
}

Json location_of(const LintFinding& f, const std::filesystem::path& directory) {
  const auto file = f.file.empty() ? directory : directory / f.file;
  // Code hosts require a line number. A weight file has no lines, so the number is always 1.
  Json location = {
      {"physicalLocation",
       {{"artifactLocation", {{"uri", uri_of(file.generic_string())}}}, {"region", {{"startLine", 1}}}}}};
  if (!f.name.empty()) location["logicalLocations"] = Json::array({{{"fullyQualifiedName", f.name}}});
  return location;
}

/// Returns the first consequences of a finding. Code hosts accept at most 1,000 locations in a result.
Json consequences_of(const LintFinding& f, const std::filesystem::path& directory) {
  constexpr size_t kMost = 900;
  Json locations = Json::array();
  for (size_t i = 0; i < std::min(f.consequences.size(), kMost); ++i) {
    const LintFinding& c = f.consequences[i];
    Json location = location_of(c, directory);
    location["id"] = i + 1;
    location["message"] = {{"text", fmt::format("{}: {}", lint_rules()[c.rule].id, message_of(c))}};
    locations.push_back(std::move(location));
  }
  return locations;
}

Json result_to_json(const LintFinding& f, bool is_known, const std::filesystem::path& directory) {
  std::string text = message_of(f);
  if (!f.consequences.empty()) text += " (" + counted(f.consequences.size(), "consequence") + ")";
  Json json = {{"ruleId", lint_rules()[f.rule].id},
               {"ruleIndex", f.rule},
               {"level", severity_name(f.severity)},
               {"message", {{"text", text}}},
               {"locations", Json::array({location_of(f, directory)})},
               {"partialFingerprints", {{"twofourFinding/v1", finding_fingerprint(f)}}}};
  if (!f.consequences.empty()) json["relatedLocations"] = consequences_of(f, directory);
  if (is_known) {
    json["baselineState"] = "unchanged";
    json["suppressions"] = Json::array({{{"kind", "external"}, {"status", "accepted"}}});
  }
  return json;
}

std::string indented_json(const Json& json) { return json.dump(2); }

}  // namespace

void write_sarif(const LintReport& report, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& write) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(path, error);
  const bool is_url = path.string().find("://") != std::string::npos;
  const auto directory = is_url ? path : (is_directory ? path : path.parent_path()).lexically_normal();
  Json rules = Json::array();
  for (const LintRule& rule : lint_rules()) rules.push_back(rule_to_json(rule));
  const Json driver = {{"name", "twofour"}, {"version", version()}, {"rules", rules}};
  const Json run = {
      {"tool", {{"driver", driver}}}, {"columnKind", "utf16CodeUnits"}, {"results", Json::array()}};
  const Json document = {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
                         {"version", "2.1.0"},
                         {"runs", Json::array({run})}};
  const std::string frame = indented_json(document);
  // Results are the last member of the run, which is the last member of the document.
  const size_t results = frame.rfind("[]") + 1;
  write(std::string_view(frame).substr(0, results));
  const std::string line_end = fmt::format("\n{:8}", "");
  const size_t fresh = report.findings.size(), count = fresh + report.known.size();
  for (size_t i = 0; i < count; ++i) {
    const LintFinding& f = i < fresh ? report.findings[i] : report.known[i - fresh];
    std::string text = i > 0 ? "," : "";
    text += line_end;
    for (const char c : indented_json(result_to_json(f, i >= fresh, directory))) {
      if (c == '\n') {
        text += line_end;
      } else {
        text += c;
      }
    }
    write(text);
  }
  if (count > 0) write("\n      ");
  write(std::string_view(frame).substr(results));
  write("\n");
}

}  // namespace twofour
