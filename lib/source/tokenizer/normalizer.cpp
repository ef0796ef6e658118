#include <fmt/format.h>

#include <memory>

#include "formats/error.h"
#include "lib/source/tokenizer/text_steps.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace normalizer_types {
namespace {

using Steps = std::vector<NormalizerStep>;

template <NormalForm form>
Steps make_form(const Field&) {
  return {[](std::string& text) { text = normalize(text, form); }};
}

Steps make_lowercase(const Field&) {
  return {[](std::string& text) { text = lower_case(text); }};
}

Steps make_strip_accents(const Field&) {
  return {[](std::string& text) { text = strip_accents(text); }};
}

Steps make_strip(const Field& field) {
  const bool left = field.at("strip_left").boolean(), right = field.at("strip_right").boolean();
  return {[left, right](std::string& text) {
    if (right) text.resize(text.size() - trailing_spaces(text));
    if (left) text.erase(0, leading_spaces(text));
  }};
}

Steps make_prepend(const Field& field) {
  return {[prefix = field.at("prepend").text()](std::string& text) {
    if (!text.empty()) text.insert(0, prefix);
  }};
}

Steps make_replace(const Field& field) {
  const auto pattern = std::make_shared<const Pattern>(read_pattern(field.at("pattern")));
  return {[pattern, content = field.at("content").text()](std::string& text) {
    Pattern::Matcher matcher(*pattern, text.size());
    text = replace_matches(matcher, text, content);
  }};
}

Steps make_byte_level(const Field&) {
  return {[](std::string& text) {
    std::string mapped;
    for (const char c : text) append_character(mapped, character_of_byte(static_cast<uint8_t>(c)));
    text = std::move(mapped);
  }};
}

Steps make_sequence(const Field& field);

constexpr PartType<Steps> kTypes[] = {{"NFC", make_form<NormalForm::kNfc>},
                                      {"NFD", make_form<NormalForm::kNfd>},
                                      {"NFKC", make_form<NormalForm::kNfkc>},
                                      {"NFKD", make_form<NormalForm::kNfkd>},
                                      {"Prepend", make_prepend},
                                      {"Replace", make_replace},
                                      {"Lowercase", make_lowercase},
                                      {"Strip", make_strip},
                                      {"StripAccents", make_strip_accents},
                                      {"ByteLevel", make_byte_level},
                                      {"Sequence", make_sequence}};

Steps make_sequence(const Field& field) {
  Steps all;
  for (const Field& element : field.at("normalizers").elements()) {
    for (NormalizerStep& step : make_part(element, kTypes)) all.push_back(std::move(step));
  }
  return all;
}

}  // namespace
}  // namespace normalizer_types

std::vector<NormalizerStep> read_normalizer(const Field& field) {
  return field.is_null() ? normalizer_types::Steps()
                         : at_most(field, make_part(field, normalizer_types::kTypes), kMostParts);
}

void check_growth(std::string_view where, size_t before, size_t after) {
  constexpr size_t kMostTimes = 64, kMostMore = 1 << 20;
  if (after <= kMostMore || (after - kMostMore) / kMostTimes <= before) return;
  throw Error(fmt::format("{}: expected at most {} times the bytes of a text and {} more, found {} from {}",
                          where, kMostTimes, kMostMore, after, before));
}

Pattern read_pattern(const Field& field) {
  const Field text = field.at("String"), expression = field.at("Regex");
  if (text.is_null() == expression.is_null()) field.refuse("either String or Regex");
  return text.is_null() ? Pattern(expression.where(), expression.text())
                        : Pattern::literal(text.where(), text.text());
}

std::string replace_matches(Pattern::Matcher& matcher, const std::string& text, const std::string& content) {
  if (text.empty()) return text;  // as in `tokenizers`, nothing matches in it, not even an empty match
  std::string buffer, out;
  const std::string_view known = with_known_characters(text, buffer);
  size_t at = 0;
  for (const Span& match : matcher.find_all(known)) {
    out.append(text, at, match.begin - at).append(content);
    check_growth("Replace", text.size(), out.size());
    at = match.end;
  }
  return out.append(text, at);
}

}  // namespace twofour
