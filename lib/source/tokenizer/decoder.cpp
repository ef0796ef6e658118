#include <algorithm>
#include <memory>

#include "lib/source/tokenizer/text_steps.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace decoder_types {
namespace {

using Steps = std::vector<DecoderStep>;
using Tokens = std::vector<std::string>;

/// Appends the bytes for which a token of GPT-2's alphabet stands. A token with other characters stands for
/// itself.
void append_bytes(const std::string& token, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t at = 0; at < token.size();) {
    const int byte = byte_of_character(next_character(token, at));
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
  }
}

Steps make_byte_level(const Field&) {
  return {[](Tokens& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) append_bytes(token, bytes);
    tokens = {replace_not_utf8(bytes)};
  }};
}

/// Returns the byte of a token like "<0x0A>". -1 if the token is not of this form.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!letter && (c < '0' || c > '9')) return -1;
    byte = byte * 16 + (letter ? (c | 0x20) - 'a' + 10 : c - '0');
  }
  return byte;
}

/// Converts consecutive byte tokens to text. If their bytes together are not valid UTF-8, each byte becomes
/// U+FFFD.
Steps make_byte_fallback(const Field&) {
  return {[](Tokens& tokens) {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (find_not_utf8(bytes) == std::string::npos) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of_token(token); byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }};
}

Steps make_fuse(const Field&) {
  return {[](Tokens& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {std::move(all)};
  }};
}

Steps make_strip(const Field& field) {
  constexpr size_t kMost = 1'000'000;
  std::string content;
  append_character(content, field.at("content").character());
  const size_t start = field.at("start").whole(kMost), stop = field.at("stop").whole(kMost);
  return {[content, start, stop](Tokens& tokens) {
    for (std::string& token : tokens) {
      size_t begin = 0, end = token.size();
      for (size_t i = 0; i < start && std::string_view(token).substr(begin).starts_with(content); ++i)
        begin += content.size();
      for (size_t i = 0; i < stop && end > begin && std::string_view(token).substr(0, end).ends_with(content);
           ++i)
        end -= content.size();
      token = token.substr(begin, end - begin);
    }
  }};
}

Steps make_replace(const Field& field) {
  const auto pattern = std::make_shared<const Pattern>(read_pattern(field.at("pattern")));
  return {[pattern, content = field.at("content").text()](Tokens& tokens) {
    size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    Pattern::Matcher matcher(*pattern, bytes);
    for (std::string& token : tokens) token = replace_matches(matcher, token, content);
  }};
}

Steps make_metaspace(const Field& field) {
  std::string mark;
  append_character(mark, field.at("replacement").character());
  const Field scheme = field.at("prepend_scheme");
  const bool never = scheme.is_null() ? !field.at("add_prefix_space").boolean(true)
                                      : scheme.choice({"always", "first", "never"}) == 2;
  return {[mark, never](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const char* space = i == 0 && !never ? "" : " ";
      std::string out;
      for (size_t at = 0; at < tokens[i].size();) {
        const bool marked = std::string_view(tokens[i]).substr(at).starts_with(mark);
        marked ? out += space : out += tokens[i][at];
        at += marked ? mark.size() : 1;
      }
      tokens[i] = std::move(out);
    }
  }};
}

Steps make_sequence(const Field& field);

constexpr PartType<Steps> kTypes[] = {{"ByteLevel", make_byte_level}, {"ByteFallback", make_byte_fallback},
                                      {"Replace", make_replace},      {"Fuse", make_fuse},
                                      {"Strip", make_strip},          {"Metaspace", make_metaspace},
                                      {"Sequence", make_sequence}};

Steps make_sequence(const Field& field) {
  Steps all;
  for (const Field& element : field.at("decoders").elements()) {
    for (DecoderStep& step : make_part(element, kTypes)) all.push_back(std::move(step));
  }
  return all;
}

}  // namespace
}  // namespace decoder_types

std::vector<DecoderStep> read_decoder(const Field& field) {
  return field.is_null() ? decoder_types::Steps()
                         : at_most(field, make_part(field, decoder_types::kTypes), kMostParts);
}

}  // namespace twofour
