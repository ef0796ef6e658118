#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "formats/json.h"
#include "lib/base/findings/version.h"
#include "lib/lint/rules/baseline.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

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

/// The files of a checkpoint as SARIF names them.
class SarifPaths {
 public:
  explicit SarifPaths(const fs::path& path) {
    std::error_code error;
    if (path.string().find("://") != std::string::npos) {
      prefix_ = path.string() + "/";
      whole_ = weights_ = "config.json";
      return;
    }
    const bool is_directory = fs::is_directory(path, error);
    const fs::path directory = (is_directory ? path : path.parent_path()) / "";
    if (is_directory) {
      whole_ = weights_ = "config.json";
      for (const char* name : {"model.safetensors", kIndexName}) {
        if (fs::exists(directory / name, error)) weights_ = name;
      }
    } else {
      whole_ = weights_ = path.filename().string();
    }
    // Code hosts show files of the repository, which is where a job begins.
    const fs::path absolute = fs::absolute(directory, error).lexically_normal();
    const fs::path here = fs::current_path(error) / "";
    if (const fs::path inside = absolute.lexically_relative(here);
        !inside.empty() && *inside.begin() != "..") {
      prefix_ = inside == "." ? "" : (inside / "").generic_string();
    } else {
      base_ = "file://" + uri_of(absolute.generic_string());
    }
  }

  /// The location of a file. If a finding names none, it is of the file that lists the tensors, or of
  /// config.json, since a directory is no artifact.
  Json location(const LintFinding& f) const {
    const std::string& file = !f.file.empty() ? f.file : f.name.empty() ? whole_ : weights_;
    Json location = {{"uri", uri_of(prefix_ + file)}};
    if (!base_.empty()) location["uriBaseId"] = kBase;
    return location;
  }

  /// The directory that locations are relative to. Null if it is the working directory.
  Json bases() const { return base_.empty() ? Json() : Json{{kBase, {{"uri", base_}}}}; }

 private:
  static constexpr const char* kBase = "CHECKPOINT";
  std::string prefix_, base_;
  std::string whole_, weights_;  ///< files for findings of the checkpoint, and of tensors that are missing
};

Json location_of(const LintFinding& f, const SarifPaths& paths) {
  // Code hosts require a line number. A weight file has no lines, so the number is always 1.
  Json location = {
      {"physicalLocation", {{"artifactLocation", paths.location(f)}, {"region", {{"startLine", 1}}}}}};
  if (!f.name.empty()) location["logicalLocations"] = Json::array({{{"fullyQualifiedName", f.name}}});
  return location;
}

/// Returns the first consequences of a finding. Code hosts accept at most 1,000 locations in a result.
Json consequences_of(const LintFinding& f, const SarifPaths& paths) {
  constexpr size_t kMost = 900;
  Json locations = Json::array();
  for (size_t i = 0; i < std::min(f.consequences.size(), kMost); ++i) {
    const LintFinding& c = f.consequences[i];
    Json location = location_of(c, paths);
    location["id"] = i + 1;
    location["message"] = {{"text", fmt::format("{}: {}", lint_rules()[c.rule].id, message_of(c))}};
    locations.push_back(std::move(location));
  }
  return locations;
}

Json result_to_json(const LintFinding& f, bool is_known, const SarifPaths& paths) {
  std::string text = message_of(f);
  if (!f.consequences.empty()) text += " (" + counted(f.consequences.size(), "consequence") + ")";
  Json json = {{"ruleId", lint_rules()[f.rule].id},
               {"ruleIndex", f.rule},
               {"level", severity_name(f.severity)},
               {"message", {{"text", text}}},
               {"locations", Json::array({location_of(f, paths)})},
               {"partialFingerprints", {{"twofourFinding/v1", finding_fingerprint(f)}}}};
  if (!f.consequences.empty()) json["relatedLocations"] = consequences_of(f, paths);
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
  const SarifPaths paths(path);
  Json rules = Json::array();
  for (const LintRule& rule : lint_rules()) rules.push_back(rule_to_json(rule));
  const Json driver = {{"name", "twofour"}, {"version", version()}, {"rules", rules}};
  Json run = {{"tool", {{"driver", driver}}}, {"columnKind", "utf16CodeUnits"}};
  if (const Json bases = paths.bases(); !bases.is_null()) run["originalUriBaseIds"] = bases;
  run["results"] = Json::array();
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
    for (const char c : indented_json(result_to_json(f, i >= fresh, paths))) {
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
