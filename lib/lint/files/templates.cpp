#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/io/file.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"
#include "lib/lint/files/jinja.h"

// Checks of chat templates: whether they parse, and whether the tokens that they write exist.

namespace twofour {
namespace {

namespace fs = std::filesystem;

class TemplateLint {
 public:
  TemplateLint(const LintInput& s, const TokenTable* tokens, LintReporter& reporter)
      : s_(s), tokens_(tokens), reporter_(reporter) {}

  /// Checks a template, or a list of templates with names.
  void check(const LintPlace& place, const Json& value) {
    if (value.is_string()) return check_text(place, value.get_ref<const std::string&>());
    if (value.is_object()) {
      for (const auto& [name, text] : value.items()) check({place.file, place.name + "." + name}, text);
      return;
    }
    if (!value.is_array()) {
      if (!value.is_null())
        reporter_.add("bad-chat-template", place,
                      "expected a text or a list of templates, found another value");
      return;
    }
    for (const Json& one : value) {
      const std::string name = text_of(one, "name");
      const Json& text = member(one, "template");
      if (name.empty() || !text.is_string()) {
        reporter_.add("bad-chat-template", place,
                      "expected a name and a template in each entry, found another");
        return;
      }
      check({place.file, fmt::format("{}.{}", place.name, name)}, text);
    }
  }

  void check_text(const LintPlace& place, std::string_view text) {
    const TemplateFacts facts = read_template(text);
    if (!facts.problem.empty()) {
      reporter_.add("bad-chat-template", place, facts.problem);
    } else if (facts.is_empty) {
      reporter_.add("bad-chat-template", place, "expected a template that writes something, found none");
    }
    if (tokens_ == nullptr || !tokens_->is_known()) return;
    std::vector<std::string> missing;
    for (const std::string& token : facts.tokens) {
      if (!tokens_->find(token) && !is_of_config(token)) missing.push_back(token);
    }
    if (missing.empty()) return;
    reporter_.add("missing-token", place,
                  "expected tokens of the tokenizer, found {} that it does not have{}", missing[0],
                  and_more(missing.size(), ", nor {} more"));
  }
  /// True if tokenizer_config.json adds the token.
  bool is_of_config(const std::string& token) const {
    return std::find(config_tokens.begin(), config_tokens.end(), token) != config_tokens.end();
  }

  std::vector<std::string> config_tokens;  ///< tokens that only tokenizer_config.json has

 private:
  const LintInput& s_;
  const TokenTable* tokens_;
  LintReporter& reporter_;
};

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// Reads a template in a file of its own; nullopt: there is none, or another rule reports it.
std::optional<std::string> read_template_file(const LintInput& s, const std::string& name,
                                              LintReporter& reporter) {
  std::error_code error;
  if (!fs::is_regular_file(s.path / name, error)) return std::nullopt;
  if (find_placeholder(s.path / name) && fs::file_size(s.path / name, error) > 0) return std::nullopt;
  try {
    return read_text(s.path / name);
  } catch (const Error& e) {
    reporter.add("bad-config", {name, ""}, damage_of(e, s.path / name));
    return std::nullopt;
  }
}

}  // namespace

void lint_templates(const LintInput& s, const Json& tokenizer, const TokenTable* tokens,
                    LintReporter& reporter) {
  constexpr const char* kFile = "chat_template.jinja";
  TemplateLint lint(s, tokens, reporter);
  for (const auto& [number, token] : members_of(tokenizer, "added_tokens_decoder"))
    lint.config_tokens.push_back(text_of(token, "content"));
  const Json& own = member(tokenizer, "chat_template");
  if (!own.is_null()) lint.check({"tokenizer_config.json", "chat_template"}, own);
  const auto file = read_template_file(s, kFile, reporter);
  if (file) {
    lint.check_text({kFile, ""}, *file);
    if (!own.is_null() && !(own.is_string() && trimmed(own.get<std::string>()) == trimmed(*file)))
      reporter.add("two-chat-templates", {"tokenizer_config.json", "chat_template"},
                   "expected none beside chat_template.jinja or the same, found another");
  }
  if (!is_absent(s.path / "chat_template.json")) {
    const Json json = read_lint_config(s.path, "chat_template.json", reporter);
    lint.check({"chat_template.json", "chat_template"}, member(json, "chat_template"));
  }
  std::error_code error;
  for (fs::directory_iterator it(s.path / "additional_chat_templates", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = fs::path("additional_chat_templates") / it->path().filename();
    if (!name.ends_with(".jinja")) continue;
    if (const auto text = read_template_file(s, name, reporter)) lint.check_text({name, ""}, *text);
  }
}

}  // namespace twofour
