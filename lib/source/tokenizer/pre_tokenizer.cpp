#include <algorithm>
#include <array>
#include <memory>

#include "lib/source/tokenizer/text_steps.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace pre_tokenizer_types {
namespace {

using Steps = std::vector<PreTokenizerStep>;

/// The treatment of matches, in the order of kBehaviors.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
const std::vector<std::string_view> kBehaviors = {"Removed", "Isolated", "MergedWithPrevious",
                                                  "MergedWithNext", "Contiguous"};

struct Part {
  Span span;
  bool is_match;
};

/// Lists the matches in a piece of `size` bytes, and the parts between them.
void cut(const std::vector<Span>& matches, size_t size, bool invert, std::vector<Part>& parts) {
  parts.clear();
  size_t at = 0;
  for (const Span& match : matches) {
    if (at != match.begin) parts.push_back({{at, match.begin}, invert});
    parts.push_back({match, !invert});
    at = match.end;
  }
  if (at != size) parts.push_back({{at, size}, invert});
}

/// Merges neighbouring parts by `behavior`. The parts stay in order. If three matches are in a row,
/// MergedWithPrevious merges only the first, and MergedWithNext only the last.
void merge(Behavior behavior, std::vector<Part>& parts) {
  if (behavior == Behavior::kRemoved) std::erase_if(parts, [](const Part& p) { return p.is_match; });
  if (behavior == Behavior::kRemoved || behavior == Behavior::kIsolated) return;
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  size_t size = 0;
  bool previous = false;
  for (const Part part : parts) {
    const bool merges =
        behavior == Behavior::kContiguous ? part.is_match == previous : part.is_match && !previous;
    if (merges && size != 0) {
      Span& last = parts[size - 1].span;
      last = {std::min(last.begin, part.span.begin), std::max(last.end, part.span.end)};
    } else {
      parts[size++] = part;
    }
    previous = part.is_match;
  }
  parts.resize(size);
  if (backwards) std::reverse(parts.begin(), parts.end());
}

void split(const Pattern& pattern, Behavior behavior, bool invert, TextPieces& pieces) {
  std::string buffer;
  const std::string_view known = with_known_characters(pieces.text, buffer);
  Pattern::Matcher matcher(pattern, pieces.text.size());
  std::vector<Span> spans;
  spans.reserve(pieces.spans.size());
  std::vector<Part> parts;
  for (const Span& span : pieces.spans) {
    const std::vector<Span>& matches = matcher.find_all(known.substr(span.begin, span.end - span.begin));
    cut(matches, span.end - span.begin, invert, parts);
    merge(behavior, parts);
    for (const Part& part : parts)
      if (!part.span.empty()) spans.push_back({span.begin + part.span.begin, span.begin + part.span.end});
  }
  pieces.spans = std::move(spans);
}

PreTokenizerStep make_splitter(Pattern pattern, Behavior behavior, bool invert) {
  return [pattern = std::make_shared<const Pattern>(std::move(pattern)), behavior,
          invert](TextPieces& pieces) { split(*pattern, behavior, invert, pieces); };
}

/// Rewrites each piece. write(i, piece, out) appends the new text of piece i to `out`.
template <class Write>
void rewrite(TextPieces& pieces, Write&& write) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (size_t i = 0; i < pieces.spans.size(); ++i) {
    const size_t begin = text.size();
    write(i, pieces[i], text);
    pieces.spans[i] = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

Steps make_split(const Field& field) {
  const auto behavior = static_cast<Behavior>(field.at("behavior").choice(kBehaviors));
  return {make_splitter(read_pattern(field.at("pattern")), behavior, field.at("invert").boolean(false))};
}

/// The pattern of GPT-2. Source: openai/gpt-2, src/encoder.py.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Steps make_byte_level(const Field& field) {
  Steps steps;
  if (field.at("add_prefix_space").boolean()) {
    steps.push_back([](TextPieces& pieces) {
      rewrite(pieces, [](size_t, std::string_view piece, std::string& out) {
        if (!piece.starts_with(' ')) out += ' ';
        out += piece;
      });
    });
  }
  if (field.at("use_regex").boolean(true))
    steps.push_back(make_splitter(Pattern(field.where(), kGpt2), Behavior::kIsolated, false));
  steps.push_back([](TextPieces& pieces) {
    static const auto characters = [] {
      std::array<std::string, 256> all;
      for (unsigned byte = 0; byte < 256; ++byte)
        append_character(all[byte], character_of_byte(static_cast<uint8_t>(byte)));
      return all;
    }();
    rewrite(pieces, [](size_t, std::string_view piece, std::string& out) {
      for (const char c : piece) out += characters[static_cast<uint8_t>(c)];
    });
  });
  return steps;
}

/// The numbers of Unicode 17.0. No other table of the library has the last two ranges.
constexpr const char* kNumber = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";

Steps make_digits(const Field& field) {
  const bool single = field.at("individual_digits").boolean(false);
  return {make_splitter(Pattern(field.where(), kNumber), single ? Behavior::kIsolated : Behavior::kContiguous,
                        false)};
}

enum class Prepend { kAlways, kFirst, kNever };

Steps make_metaspace(const Field& field) {
  std::string mark;
  append_character(mark, field.at("replacement").character());
  const Field scheme = field.at("prepend_scheme"), old = field.at("add_prefix_space");
  auto prepend =
      scheme.is_null() ? Prepend::kAlways : static_cast<Prepend>(scheme.choice({"always", "first", "never"}));
  if (!old.boolean(true)) {
    if (!scheme.is_null() && prepend != Prepend::kNever) old.refuse("true with this prepend_scheme");
    prepend = Prepend::kNever;
  }
  Steps steps;
  steps.push_back([mark, prepend](TextPieces& pieces) {
    const bool begins_text = pieces.begins_text;
    rewrite(pieces, [&](size_t i, std::string_view piece, std::string& out) {
      const bool may = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && begins_text && i == 0);
      if (may && !piece.starts_with(mark) && !piece.starts_with(' ')) out += mark;
      for (const char c : piece) {
        if (c == ' ') {
          out += mark;
        } else {
          out += c;
        }
      }
    });
  });
  if (field.at("split").boolean(true))
    steps.push_back(make_splitter(Pattern::literal(field.where(), mark), Behavior::kMergedWithNext, false));
  return steps;
}

Steps make_sequence(const Field& field);

constexpr PartType<Steps> kTypes[] = {{"ByteLevel", make_byte_level},
                                      {"Split", make_split},
                                      {"Digits", make_digits},
                                      {"Metaspace", make_metaspace},
                                      {"Sequence", make_sequence}};

Steps make_sequence(const Field& field) {
  Steps all;
  for (const Field& element : field.at("pretokenizers").elements()) {
    for (PreTokenizerStep& step : make_part(element, kTypes)) all.push_back(std::move(step));
  }
  return all;
}

}  // namespace
}  // namespace pre_tokenizer_types

std::vector<PreTokenizerStep> read_pre_tokenizer(const Field& field) {
  return field.is_null() ? pre_tokenizer_types::Steps()
                         : at_most(field, make_part(field, pre_tokenizer_types::kTypes), kMostParts);
}

namespace {

bool is_printable(unsigned byte) { return (byte > ' ' && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD); }

/// The characters that stand for bytes. Unprintable bytes have characters from 256 on, in their order.
constexpr char32_t kUnprintable = 256;

const std::array<char32_t, 256>& byte_characters() {
  static const auto table = [] {
    std::array<char32_t, 256> all{};
    char32_t next = kUnprintable;
    for (unsigned byte = 0; byte < 256; ++byte) all[byte] = is_printable(byte) ? char32_t{byte} : next++;
    return all;
  }();
  return table;
}

}  // namespace

char32_t character_of_byte(uint8_t byte) { return byte_characters()[byte]; }

int byte_of_character(char32_t c) {
  static const auto bytes = [] {
    std::array<int, 512> all;
    all.fill(-1);
    for (int byte = 0; byte < 256; ++byte) all[byte_characters()[static_cast<size_t>(byte)]] = byte;
    return all;
  }();
  return c < bytes.size() ? bytes[c] : -1;
}

}  // namespace twofour
