#include "lib/source/tokenizer/unicode.h"

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "formats/json.h"

namespace twofour {
namespace {

struct Run {
  char32_t first, last;
  uint32_t value;
};
struct Decomposition {
  char32_t from;
  uint16_t canonical, canonical_size, compatible, compatible_size;
};
struct Composition {
  char32_t first, second, composed;
};
#include "lib/source/tokenizer/unicode_data.inc"

constexpr char32_t kLastCharacter = 0x10FFFF;
/// The set of blocks of 256 characters that have an entry in some table.
using Pages = std::bitset<(kLastCharacter >> 8) + 1>;

template <size_t N>
Pages pages_of(const Run (&runs)[N]) {
  Pages pages;
  for (const Run& run : runs)
    for (char32_t page = run.first >> 8; page <= run.last >> 8; ++page) pages.set(page);
  return pages;
}

/// Returns the run of a table that has `c`. Null if none has it.
template <size_t N>
const Run* find_run(const Run (&runs)[N], char32_t c) {
  const Run* run = std::lower_bound(std::begin(runs), std::end(runs), c,
                                    [](const Run& r, char32_t x) { return r.last < x; });
  return run != std::end(runs) && run->first <= c ? run : nullptr;
}

// Hangul syllables are computed. Source: The Unicode Standard, section 3.12.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

bool is_syllable(char32_t c) { return c >= kSyllables && c < kSyllables + kSyllableCount; }

/// True if no normal form changes a character of this block or anything around it.
bool has_no_forms(char32_t c) {
  static const Pages pages = [] {
    Pages all = pages_of(kCombining);
    for (const Decomposition& d : kDecompositions) all.set(d.from >> 8);
    for (const Composition& p : kCompositions) all.set(p.second >> 8);
    all.set(kLeads >> 8);
    for (char32_t page = kSyllables >> 8; page <= (kSyllables + kSyllableCount) >> 8; ++page) all.set(page);
    return all;
  }();
  return !pages[c >> 8];
}

struct Element {
  char32_t c;
  uint32_t order;  ///< canonical combining class
};

void decompose(char32_t c, bool compatible, std::vector<Element>& out) {
  const auto add = [&](char32_t part) {
    const Run* run = find_run(kCombining, part);
    out.push_back({part, run == nullptr ? 0 : run->value});
  };
  if (is_syllable(c)) {
    const char32_t at = c - kSyllables, tail = at % kTailCount;
    add(kLeads + at / (kVowelCount * kTailCount));
    add(kVowels + at % (kVowelCount * kTailCount) / kTailCount);
    if (tail != 0) add(kTails + tail);
    return;
  }
  const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                       [](const Decomposition& d, char32_t x) { return d.from < x; });
  if (found == std::end(kDecompositions) || found->from != c) return add(c);
  const size_t size = compatible ? found->compatible_size : found->canonical_size;
  if (size == 0) return add(c);
  const char32_t* parts = kPool + (compatible ? found->compatible : found->canonical);
  std::for_each(parts, parts + size, add);
}

/// Returns the composition of two characters. 0 if they do not compose.
char32_t composed(char32_t a, char32_t b) {
  if (a >= kLeads && a < kLeads + kLeadCount && b >= kVowels && b < kVowels + kVowelCount)
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTailCount;
  if (is_syllable(a) && (a - kSyllables) % kTailCount == 0 && b > kTails && b < kTails + kTailCount)
    return a + (b - kTails);
  const auto* found = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), std::pair(a, b),
      [](const Composition& p, const auto& pair) { return std::pair(p.first, p.second) < pair; });
  return found != std::end(kCompositions) && found->first == a && found->second == b ? found->composed : 0;
}

void sort_marks(std::vector<Element>& text) {
  for (auto at = text.begin(); at != text.end();) {
    const auto end = std::find_if(at, text.end(), [](const Element& e) { return e.order == 0; });
    std::stable_sort(at, end, [](const Element& a, const Element& b) { return a.order < b.order; });
    at = end == text.end() ? end : end + 1;
  }
}

void compose(std::vector<Element>& text) {
  size_t size = 0, starter = SIZE_MAX;
  for (const Element e : text) {
    // A character between this one and the starter blocks the composition if its combining class is equal or
    // higher.
    const bool adjacent = starter != SIZE_MAX && starter + 1 == size;
    const bool blocked = starter == SIZE_MAX || (!adjacent && text[size - 1].order >= e.order);
    if (const char32_t c = blocked ? 0 : composed(text[starter].c, e.c); c != 0) {
      text[starter].c = c;
      continue;
    }
    if (e.order == 0) starter = size;
    text[size++] = e;
  }
  text.resize(size);
}

}  // namespace

size_t find_not_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const int bytes = utf8_bytes(text.substr(at));
    if (bytes < 0) return at;
    at += static_cast<size_t>(bytes);
  }
  return std::string_view::npos;
}

void append_character(std::string& out, char32_t c) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 0x3F));
  } else {
    add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 0x3F)), add(0x80 | (c >> 6 & 0x3F));
  }
  add(0x80 | (c & 0x3F));
}

std::string replace_not_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const int size = utf8_bytes(bytes.substr(at));
    const auto step = static_cast<size_t>(std::abs(size));
    out += size > 0 ? bytes.substr(at, step) : "\xEF\xBF\xBD";
    at += step;
  }
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t leading_spaces(std::string_view text) {
  size_t spaces = 0;
  for (size_t at = 0; at < text.size() && is_space(next_character(text, at));) spaces = at;
  return spaces;
}

size_t trailing_spaces(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t at = end - 1;
    while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
    const size_t begin = at;
    if (!is_space(next_character(text, at))) break;
    end = begin;
  }
  return text.size() - end;
}

std::string normalize(std::string_view text, NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  // The first character that may change. All characters below it stay as they are and combine with nothing
  // before them.
  const char32_t plain = form == NormalForm::kNfc ? 0x300 : 0x80;
  std::string out;
  out.reserve(text.size());
  std::vector<Element> changing;
  for (size_t at = 0; at < text.size();) {
    // Copy the unchanged characters. The last is left out, since it may combine with the next character.
    const size_t begin = at;
    size_t last = at, after = at;
    char32_t c = 0;
    const auto stays = [&] {
      after = at;
      c = next_character(text, after);
      return c < plain || has_no_forms(c);
    };
    for (; at < text.size() && stays(); at = after) last = at;
    out += text.substr(begin, (at == text.size() ? at : last) - begin);
    if (at == text.size()) break;
    changing.clear();
    if (size_t kept = last; last != at) decompose(next_character(text, kept), compatible, changing);
    for (; at < text.size() && !stays(); at = after) decompose(c, compatible, changing);
    sort_marks(changing);
    if (composes) compose(changing);
    for (const Element& e : changing) append_character(out, e.c);
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const Run* run = find_run(kLower, c);
    append_character(out, c == 0x130 ? U'i' : run == nullptr ? c : c + run->value);
    if (c == 0x130) append_character(out, 0x307);
  }
  return out;
}

std::string strip_accents(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (find_run(kAccents, next_character(text, at)) == nullptr) out += text.substr(begin, at - begin);
  }
  return out;
}

std::string_view with_known_characters(std::string_view text, std::string& buffer) {
  static const Pages pages = pages_of(kSubstitutes);
  bool replaced = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xE0) {  // of one or two bytes; newer characters have three or four
      ++at;
      continue;
    }
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    const Run* run = pages[c >> 8] ? find_run(kSubstitutes, c) : nullptr;
    if (run == nullptr) continue;
    if (!replaced) buffer = text;
    replaced = true;
    std::string other;
    append_character(other, run->value);
    buffer.replace(begin, other.size(), other);
  }
  return replaced ? std::string_view(buffer) : text;
}

}  // namespace twofour
