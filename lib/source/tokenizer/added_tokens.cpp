#include "lib/source/tokenizer/added_tokens.h"

#include <algorithm>

#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace {

/// A pattern of \w in Rust's regular expressions. \p{Alphabetic} is written as its letters.
constexpr const char* kWord = R"([\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9})"
                              R"(\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}])";

uint64_t edge_of(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }

}  // namespace

bool TokenFinder::add(const AddedToken& token, std::string_view text) {
  begins_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [edge, is_new] = edges_.try_emplace(edge_of(node, byte), static_cast<uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(nullptr);
    node = edge->second;
  }
  if (ends_[node] != nullptr) return false;
  ends_[node] = &token;
  if (token.single_word && !word_) word_.emplace("added_tokens", kWord);
  return true;
}

TokenFinder::Match TokenFinder::longest_at(std::string_view text, size_t at) const {
  Match longest{nullptr, at};
  uint32_t node = 0;
  while (at < text.size()) {
    const auto edge = edges_.find(edge_of(node, text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    ++at;
    if (ends_[node] != nullptr) longest = {ends_[node], at};
  }
  return longest;
}

bool TokenFinder::is_single(std::string_view text, Span span) const {
  Pattern::Matcher matcher(*word_, text.size());
  std::string buffer;
  const auto is_word = [&](std::string_view character) {
    return !matcher.find_all(with_known_characters(character, buffer)).empty();
  };
  size_t before = span.begin, after = span.end;
  while (before > 0 && (static_cast<uint8_t>(text[--before]) & 0xC0) == 0x80) {
  }
  if (span.begin != 0 && is_word(text.substr(before, span.begin - before))) return false;
  if (span.end == text.size()) return true;
  next_character(text, after);
  return !is_word(text.substr(span.end, after - span.end));
}

std::vector<TextPart> TokenFinder::find(std::string_view text) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Match match = begins_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : Match{nullptr, at};
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    Span span{at, match.end};
    at = match.end;
    if (match.token->single_word && !is_single(text, span)) continue;
    // A token may begin with white space that the previous token has taken. As in `tokenizers`, it is found
    // nevertheless, unless it takes white space itself and none is left.
    if (match.token->rstrip) {
      span.end = std::max(span.end, done);
      span.end += leading_spaces(text.substr(span.end));
    }
    if (match.token->lstrip)
      span.begin =
          done < span.begin ? span.begin - trailing_spaces(text.substr(done, span.begin - done)) : done;
    if (done < span.begin) parts.push_back({{done, span.begin}, nullptr});
    if (span.begin < span.end) parts.push_back({span, match.token});
    done = span.end;
  }
  if (done != text.size()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

}  // namespace twofour
