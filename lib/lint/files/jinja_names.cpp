#include "lib/lint/files/jinja_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace twofour {
namespace {

/// Names that programs give to templates. Sources: transformers, utils/chat_template_utils.py; vLLM,
/// entrypoints/chat_utils.py.
constexpr std::string_view kGivenNames[] = {"messages",
                                            "tools",
                                            "documents",
                                            "add_generation_prompt",
                                            "continue_final_message",
                                            "bos_token",
                                            "eos_token",
                                            "pad_token",
                                            "unk_token",
                                            "raise_exception",
                                            "strftime_now",
                                            "namespace",
                                            "range",
                                            "dict",
                                            "loop",
                                            "enable_thinking",
                                            "cycler",
                                            "joiner",
                                            "lipsum",
                                            "caller",
                                            "self",
                                            "super",
                                            "varargs",
                                            "kwargs"};
constexpr std::string_view kMessageKeys[] = {"role",      "content",  "tool_calls",
                                             "arguments", "function", "reasoning_content"};
constexpr std::string_view kJinjaWords[] = {"and",   "or",    "not",    "in",        "is",     "if",
                                            "else",  "elif",  "true",   "True",      "none",   "None",
                                            "false", "False", "for",    "set",       "macro",  "call",
                                            "with",  "from",  "import", "recursive", "filter", "block"};

template <class List>
bool has(const List& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

/// The number of letters to add, drop, change or exchange with the next one.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// True if `name` is `other` but for a slip. A plural is another name.
bool is_slip(std::string_view name, std::string_view other) {
  constexpr size_t kShort = 6, kLeast = 4;
  if (name.size() < kLeast || other.size() < kLeast || name == other) return false;
  if (name.starts_with(other) || other.starts_with(name)) {
    const std::string_view longer = name.size() > other.size() ? name : other;
    if (longer.back() == 's') return false;
  }
  const size_t most = std::min(name.size(), other.size()) < kShort ? 1 : 2;
  if (std::max(name.size(), other.size()) - std::min(name.size(), other.size()) > most) return false;
  return edits_between(name, other) <= most;
}

}  // namespace

void JinjaNames::take_targets(const std::vector<JinjaPiece>& pieces, size_t begin, size_t end) {
  for (size_t i = begin; i < std::min(end, pieces.size()); ++i)
    if (pieces[i].kind == JinjaPart::kName) set_.emplace(pieces[i].text);
}

void JinjaNames::take(const std::vector<JinjaPiece>& pieces, bool is_statement, size_t line) {
  const auto text = [&](size_t i) { return i < pieces.size() ? pieces[i].text : std::string_view(); };
  const auto is_symbol = [&](size_t i, std::string_view symbol) {
    return i < pieces.size() && pieces[i].kind == JinjaPart::kOperator && pieces[i].text == symbol;
  };
  size_t begin = 0;
  if (is_statement && !pieces.empty()) {
    const std::string_view word = pieces[0].text;
    const auto find = [&](std::string_view symbol) {
      return static_cast<size_t>(
          std::ranges::find_if(
              pieces, [&](const JinjaPiece& p) { return p.text == symbol && p.kind != JinjaPart::kString; }) -
          pieces.begin());
    };
    begin = 1;
    if (word == "for") {
      begin = find("in");
      take_targets(pieces, 1, begin);
    } else if (word == "set" || word == "with") {
      begin = find("=");
      // An attribute of a namespace is no new name.
      take_targets(pieces, 1, is_symbol(2, ".") ? 2 : begin);
    } else if (word == "macro" || word == "call" || word == "import" || word == "from" || word == "block" ||
               word == "filter") {
      return take_targets(pieces, 1, pieces.size());
    }
  }
  for (size_t i = begin; i < pieces.size(); ++i) {
    const JinjaPiece& p = pieces[i];
    const bool is_key = p.kind == JinjaPart::kString && is_symbol(i - 1, "[") && is_symbol(i + 1, "]");
    const bool is_attribute = p.kind == JinjaPart::kName && i > 0 && is_symbol(i - 1, ".");
    if (is_key || (is_attribute && !is_symbol(i + 1, "("))) keys_.emplace(p.text, line);
    if (p.kind != JinjaPart::kName || is_attribute || has(kJinjaWords, p.text)) continue;
    if (i > 0 && (is_symbol(i - 1, "|") || text(i - 1) == "is" ||
                  (text(i - 1) == "not" && i > 1 && text(i - 2) == "is")))
      continue;
    if (is_symbol(i + 1, "=")) continue;  // the name of an argument
    if (text(i + 1) == "is" &&
        (text(i + 2) == "defined" || text(i + 2) == "undefined" || text(i + 3) == "defined"))
      tested_.emplace(p.text);
    read_.emplace(p.text, line);
  }
}

std::string JinjaNames::mistyped() const {
  for (const auto& [name, line] : read_) {
    if (set_.contains(name) || tested_.contains(name) || has(kGivenNames, name)) continue;
    for (const std::string_view other : kGivenNames)
      if (is_slip(name, other))
        return fmt::format("line {}: expected {}, found {}, which nothing sets", line, other, name);
    for (const std::string& other : set_)
      if (is_slip(name, other))
        return fmt::format("line {}: expected {}, found {}, which nothing sets", line, other, name);
  }
  for (const auto& [key, line] : keys_) {
    if (has(kMessageKeys, key)) continue;
    for (const std::string_view other : kMessageKeys)
      if (is_slip(key, other) && edits_between(key, other) == 1)
        return fmt::format("line {}: expected {} of a message, found {}", line, other, key);
  }
  return "";
}

}  // namespace twofour
