#include <string>

#include "lib/base/io/file.h"
#include "lib/lint/files/checks.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Reads the model card. Empty: there is none, or it cannot be read.
std::string read_card(const LintInput& s) {
  constexpr uint64_t kLongest = 16u << 20;
  std::error_code error;
  const fs::path path = s.path / "README.md";
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kLongest) return {};
  try {
    return read_text(path);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return {};
  }
}

/// True if the front matter of the model card names a licence.
bool names_licence(const std::string& card) {
  if (!card.starts_with("---")) return false;
  const size_t end = card.find("\n---", 3);
  const size_t key = card.find("\nlicense:");
  return key != card.npos && key < end;
}

bool has_licence_file(const LintInput& s) {
  std::error_code error;
  for (fs::directory_iterator it(s.path, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    for (char& c : name)
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    for (const char* begin : {"LICENSE", "LICENCE", "COPYING", "MODEL_LICENSE"})
      if (name.starts_with(begin)) return true;
  }
  return false;
}

}  // namespace

void lint_publishing(const LintInput& s, const Json& tokenizer, LintReporter& reporter) {
  const std::string card = read_card(s);
  if (card.find_first_not_of(" \t\r\n") == card.npos)
    reporter.add("no-model-card", {"README.md", ""}, "expected a description of the model, found nothing");
  if (!names_licence(card) && !has_licence_file(s))
    reporter.add("no-license", {"", ""}, "expected LICENSE, or license: in README.md, found neither");
  const bool has_own =
      tokenizer.is_object() && tokenizer.contains("chat_template") && !tokenizer["chat_template"].is_null();
  const bool has_file =
      !is_absent(s.path / "chat_template.jinja") || !is_absent(s.path / "chat_template.json");
  if (!has_own && !has_file && !is_absent(s.path / "tokenizer_config.json"))
    reporter.add("no-chat-template", {"tokenizer_config.json", "chat_template"}, "expected one, found none");
}

}  // namespace twofour
