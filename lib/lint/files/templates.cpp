#include <fmt/format.h>

#include <algorithm>
#include <cctype>

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

bool names_word(const std::string& names, std::string_view word) {
  return names.find(fmt::format(" {} ", word)) != names.npos;
}

/// Reports templates without a place for images, of a model that has a tower for them. Models with code of
/// their own may put the places in by that.
void check_image_places(const LintInput& s, const Json& tokenizer, const TokenTable* tokens,
                        const ChatTemplates& templates, LintReporter& reporter) {
  if (templates.empty() || tokens == nullptr || !member(s.config, "vision_config").is_object() ||
      s.config.contains("auto_map") || (tokenizer.is_object() && tokenizer.contains("auto_map")))
    return;
  const auto names_image = [](const std::string& text) { return text.find("image") != text.npos; };
  const auto token =
      std::ranges::find_if(tokens->added, [&](const auto& t) { return names_image(t.second); });
  const bool sees = std::ranges::any_of(s.tensors, [](const TensorInfo& t) {
    return t.name.find("visual.") != t.name.npos || t.name.find("vision") != t.name.npos;
  });
  if (token == tokens->added.end() || !sees) return;
  for (const char* word : {"image", "img", "IMG", "media", "vision", "multimodal"}) {
    if (templates.write(word) || templates.names.find(word) != std::string::npos) return;
  }
  reporter.add("template-gap", {"tokenizer_config.json", "chat_template"},
               "expected a place for images, such as {}, because there is a vision_config, found none",
               json_quote_short(token->second));
}

/// Reports a model whose templates write tokens for images and that has no settings for its processor.
void check_processor(const LintInput& s, const TokenTable* tokens, const ChatTemplates& templates,
                     LintReporter& reporter) {
  constexpr const char* kFile = "preprocessor_config.json";
  LintReporter unreported;  // another rule reports a file that cannot be read
  if (tokens == nullptr || !member(s.config, "vision_config").is_object() || s.config.contains("auto_map") ||
      !is_absent(s.path / kFile) ||
      read_lint_config(s.path, "processor_config.json", unreported).contains("image_processor"))
    return;
  for (const auto& [number, text] : tokens->added) {
    if (text.size() < 3 || text.find("image") == text.npos || !templates.write(text)) continue;
    return reporter.add(
        "missing-sidecar", {"config.json", kFile},
        "expected it, or an image_processor in processor_config.json, because chat templates write {}, "
        "found none",
        json_quote_short(text));
  }
}

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
                      "expected a name and a template in each entry, found an entry without them");
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
    if (facts.problem.empty() && !facts.mistyped.empty())
      reporter_.add("template-gap", place, facts.mistyped);
    templates.written += facts.written;
    templates.names += facts.names;
    templates.behind += facts.behind;
    // A template that only compares roles ends the user's message in such a way that the answer follows. A
    // role in plain text is for the model to write.
    if (facts.problem.empty() && facts.writes_roles && !facts.tokens.empty() && !begins_answer(facts))
      reporter_.add("template-gap", place,
                    "expected the role of the answer if add_generation_prompt is true, found none");
    if (facts.problem.empty() && !facts.is_empty) check_turns(place, facts);
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
  /// True if the template reads add_generation_prompt, or ends with the role of the answer: always, or after
  /// the last message.
  static bool begins_answer(const TemplateFacts& facts) {
    return names_word(facts.names, "add_generation_prompt") || names_answer(facts.ending) ||
           (names_word(facts.names, "last") && names_answer(facts.written));
  }
  static bool names_answer(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text.find("assistant") != std::string::npos || text.find("model") != std::string::npos;
  }
  /// Checks that messages of users and answers are written, and that the next answer begins.
  void check_turns(const LintPlace& place, const TemplateFacts& facts) {
    const auto gap = [&](std::string message) { reporter_.add("template-gap", place, std::move(message)); };
    if (!facts.tokens.empty() && !names_word(facts.names, "messages")) {
      return gap("expected a template that reads messages, found one that does not");
    }
    if (facts.repeats_begin) gap("expected bos_token once, found it twice in a row");
    if (!facts.lost_role.empty())
      gap(fmt::format("expected a turn for the role {}, found only those of others", facts.lost_role));
    if (facts.writes_roles) return check_prompt(place, facts);
    const std::string head = trimmed(facts.answer_head);
    const size_t first = facts.written.find(head);
    const bool is_alone = head.find('<') != std::string::npos && first != std::string::npos &&
                          facts.written.find(head, first + head.size()) == std::string::npos;
    if (is_alone && !begins_answer(facts))
      gap(fmt::format("expected {} if add_generation_prompt is true, found none", json_quote_short(head)));
    check_prompt(place, facts);
  }
  /// Checks that the prompt for an answer is not that for a user.
  void check_prompt(const LintPlace& place, const TemplateFacts& facts) {
    std::string prompt = facts.prompt;
    std::ranges::transform(prompt, prompt.begin(), [](unsigned char c) { return std::tolower(c); });
    if (prompt.find("user") != std::string::npos && !names_answer(prompt))
      reporter_.add(
          "template-gap", place,
          "expected the role of the answer if add_generation_prompt is true, found that of the user");
  }
  static std::string trimmed(std::string text) {
    const auto is_blank = [&](size_t at) { return text[at] == '\n' || text[at] == ' '; };
    for (;;) {
      if (!text.empty() && is_blank(text.size() - 1)) {
        text.pop_back();
      } else if (text.ends_with("\\n")) {
        text.resize(text.size() - 2);
      } else {
        return text;
      }
    }
  }
  /// True if tokenizer_config.json adds the token.
  bool is_of_config(const std::string& token) const {
    return std::find(config_tokens.begin(), config_tokens.end(), token) != config_tokens.end();
  }

  ChatTemplates templates{};
  std::vector<std::string> config_tokens;  ///< tokens that only tokenizer_config.json has

 private:
  const LintInput& s_;
  const TokenTable* tokens_;
  LintReporter& reporter_;
};

std::string without_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// Reads a template in a file of its own. nullopt without such a file, or if another rule reports it.
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

bool ChatTemplates::read(std::string_view name) const { return names_word(names, name); }

ChatTemplates lint_templates(const LintInput& s, const Json& tokenizer, const TokenTable* tokens,
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
    if (!own.is_null() && !(own.is_string() && without_end(own.get<std::string>()) == without_end(*file)))
      reporter.add("two-chat-templates", {"tokenizer_config.json", "chat_template"},
                   "expected none beside chat_template.jinja, or the same, found a different one");
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
  check_image_places(s, tokenizer, tokens, lint.templates, reporter);
  check_processor(s, tokens, lint.templates, reporter);
  return std::move(lint.templates);
}

}  // namespace twofour
