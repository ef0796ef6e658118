#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/lint/rules.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Code that `auto_map` names: "modeling_x.Class" names modeling_x.py, "repo--modeling_x.Class" a file in
/// another repository.
void check_auto_map(const LintInput& s, const char* file, const Json& map, LintReporter& reporter) {
  if (map.is_array() || map.is_object()) {
    for (const Json& entry : map) check_auto_map(s, file, entry, reporter);
    return;
  }
  if (!map.is_string()) return;
  const std::string text = map.get<std::string>();
  const size_t dot = text.rfind('.');
  if (text.find("--") != text.npos || dot == text.npos || text.find('/') != text.npos) return;
  std::string code = text.substr(0, dot);
  std::replace(code.begin(), code.end(), '.', '/');
  code += ".py";
  if (!is_absent(s.path / code)) return;
  reporter.add("missing-sidecar", file, code,
               fmt::format("expected as auto_map names it ({}), found none", text));
}

/// Files that tokenizer_config.json names by plain names.
void check_tokenizer_files(const LintInput& s, const Json& config, LintReporter& reporter) {
  for (const char* key :
       {"tokenizer_file", "vocab_file", "merges_file", "spm_file", "sp_model_file", "chat_template_file"}) {
    if (!config.contains(key) || !config[key].is_string()) continue;
    const std::string name = config[key].get<std::string>();
    if (name.empty() || name.find('/') != name.npos || !is_absent(s.path / name)) continue;
    reporter.add("missing-sidecar", "tokenizer_config.json", name,
                 fmt::format("expected as {} names it, found none", key));
  }
}

/// Whether there is anything that a tokenizer's vocabulary is kept in.
bool has_vocabulary(const LintInput& s) {
  std::error_code error;
  for (fs::directory_iterator it(s.path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    for (const char* known : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json",
                              "spiece.model", "sentencepiece.bpe.model", "source.spm"}) {
      if (name == known || name.ends_with(".tiktoken") || name.starts_with("tokenizer.model.")) return true;
    }
  }
  return false;
}

void check_templates(const LintInput& s, const Json& tokenizer, LintReporter& reporter) {
  if (!tokenizer.is_object() || !tokenizer.contains("chat_template") ||
      is_absent(s.path / "chat_template.jinja"))
    return;
  const Json& own = tokenizer["chat_template"];
  if (own.is_null()) return;
  const auto trimmed = [](std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    return text;
  };
  std::string file;
  try {
    file = trimmed(read_text(s.path / "chat_template.jinja"));
  } catch (const Error& e) {
    reporter.add("bad-config", "chat_template.jinja", "", damage_of(e, s.path / "chat_template.jinja"));
    return;
  }
  if (own.is_string() && trimmed(own.get<std::string>()) == file) return;
  reporter.add("two-chat-templates", "tokenizer_config.json", "chat_template",
               "expected none beside chat_template.jinja or the same, found another");
}

}  // namespace

void lint_auxiliary_files(const LintInput& s, LintReporter& reporter) {
  const Json tokenizer = read_lint_config(s.path, "tokenizer_config.json", reporter);
  const Json processor = read_lint_config(s.path, "processor_config.json", reporter);
  const Json preprocessor = read_lint_config(s.path, "preprocessor_config.json", reporter);
  read_lint_config(s.path, "generation_config.json", reporter);
  const std::pair<const char*, const Json*> configs[] = {{"config.json", &s.config},
                                                         {"tokenizer_config.json", &tokenizer},
                                                         {"processor_config.json", &processor},
                                                         {"preprocessor_config.json", &preprocessor}};
  for (const auto& [name, json] : configs) {
    if (json->is_object() && json->contains("auto_map"))
      check_auto_map(s, name, (*json)["auto_map"], reporter);
  }
  if (tokenizer.is_object()) check_tokenizer_files(s, tokenizer, reporter);
  check_templates(s, tokenizer, reporter);
  if (has_vocabulary(s)) return;
  if (is_absent(s.path / "tokenizer_config.json")) {
    reporter.add("no-tokenizer", "", "", "expected tokenizer.json, tokenizer.model or the like, found none");
  } else if (tokenizer.is_object() && !tokenizer.contains("auto_map")) {
    reporter.add("missing-sidecar", "tokenizer_config.json", "tokenizer.json",
                 "expected the vocabulary that the tokenizer needs (tokenizer.json, tokenizer.model or the "
                 "like), found none");
  }
}

}  // namespace twofour
