#include "lib/source/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace {

constexpr uint64_t kNoPair = UINT64_MAX;
constexpr uint32_t kNoSymbol = UINT32_MAX;
/// The number of characters that UTF-8 writes in two bytes or less.
constexpr size_t kShortCharacters = 0x800;
/// A longer word, in bytes, is first cut at places that no merge can cross.
constexpr size_t kLongWord = 64;
/// The length in bytes of the longest word that is cached, and the number of cached words.
constexpr size_t kKnownBytes = 256, kKnownWords = 1 << 17;

uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

size_t place_of(uint64_t pair, size_t places) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 20) & (places - 1);
}

size_t character_bytes(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

Bpe::Bpe(BpeModel model) : fuse_unknown_(model.fuse_unknown), ignore_merges_(model.ignore_merges) {
  const auto quote = [](std::string_view text) { return json_quote_short(text); };
  int32_t most = -1;
  for (const auto& [token, id] : model.vocabulary) most = std::max(most, id);
  tokens_.resize(static_cast<size_t>(most) + 1);
  std::vector<bool> taken(tokens_.size());
  for (auto& [token, id] : model.vocabulary) {
    const auto at = static_cast<size_t>(id);
    if (taken[at]) {
      throw Error(fmt::format("{}: vocab: expected every id once, found {} of {} and {}", model.where, id,
                              quote(tokens_[at]), quote(token)));
    }
    taken[at] = true;
    tokens_[at] = std::move(token);
  }
  ids_.reserve(model.vocabulary.size());
  for (const auto& [token, id] : model.vocabulary) {
    const std::string& text = tokens_[static_cast<size_t>(id)];
    if (!ids_.emplace(text, id).second)
      throw Error(
          fmt::format("{}: vocab: expected every token once, found {} twice", model.where, quote(text)));
  }

  size_t places = 16;
  while (places < 2 * model.merges.size()) places *= 2;
  merges_.assign(places, {kNoPair, 0, 0});
  std::string merged;
  for (size_t rank = 0; rank < model.merges.size(); ++rank) {
    const auto& [left, right] = model.merges[rank];
    merged.assign(left).append(right);
    for (const std::string* token : {&left, &right, static_cast<const std::string*>(&merged)}) {
      if (find(*token) >= 0) continue;
      throw Error(fmt::format("{}: merges[{}]: expected tokens of the vocabulary, found {} of {} and {}",
                              model.where, rank, quote(*token), quote(left), quote(right)));
    }
    const auto id = [&](const std::string& token) { return static_cast<uint32_t>(find(token)); };
    add_merge({pair_of(id(left), id(right)), static_cast<uint32_t>(rank), find(merged)});
    note_neighbours(left, right);
  }

  short_characters_.resize(kShortCharacters, -1);
  for (size_t c = 0; c < kShortCharacters; ++c) {
    std::string character;
    append_character(character, static_cast<char32_t>(c));
    short_characters_[c] = find(character);
  }
  if (!model.unknown_token.empty()) {
    unknown_ = find(model.unknown_token);
    if (unknown_ < 0) {
      throw Error(fmt::format("{}: unk_token: expected a token of the vocabulary, found {}", model.where,
                              quote(model.unknown_token)));
    }
  }
  if (model.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) bytes_.push_back(find(fmt::format("<0x{:02X}>", byte)));
    // If some byte tokens are missing, no supported family defines the treatment of their bytes.
    const auto missing = std::find(bytes_.begin(), bytes_.end(), -1);
    if (missing != bytes_.end()) {
      throw Error(
          fmt::format("{}: byte_fallback: expected tokens <0x00> to <0xFF> in the vocabulary, found none of "
                      "<0x{:02X}>",
                      model.where, missing - bytes_.begin()));
    }
  }
}

int32_t Bpe::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

int32_t Bpe::find_character(std::string_view character) const {
  if (character.size() > 2) return find(character);
  size_t at = 0;
  return short_characters_[next_character(character, at)];
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
  for (size_t at = place_of(pair, merges_.size());; at = (at + 1) & (merges_.size() - 1)) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == kNoPair) return nullptr;
  }
}

/// Adds a merge. If a pair occurs twice, the last occurrence counts, as in `tokenizers`.
void Bpe::add_merge(const Merge& merge) {
  size_t at = place_of(merge.pair, merges_.size());
  while (merges_[at].pair != kNoPair && merges_[at].pair != merge.pair) at = (at + 1) & (merges_.size() - 1);
  merges_[at] = merge;
}

void Bpe::note_neighbours(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) return;
  size_t last = left.size() - 1, first = 0;
  while (last > 0 && (static_cast<uint8_t>(left[last]) & 0xC0) == 0x80) --last;
  const char32_t before = next_character(left, last);
  neighbours_.insert(pair_of(before, next_character(right, first)));
}

void Bpe::cut(std::string_view word, std::vector<size_t>& cuts) const {
  cuts.clear();
  char32_t before = 0;
  bool had = false;  // true if the previous character is a token; tokens merged from it then contain its text
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    const char32_t c = next_character(word, at);
    const bool has = find_character(word.substr(begin, at - begin)) >= 0;
    if (begin != 0 && has && had && !neighbours_.contains(pair_of(before, c))) cuts.push_back(begin);
    before = c, had = has;
  }
  cuts.push_back(word.size());
}

void Bpe::Encoder::encode(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() <= kLongWord) return encode_part(word, ids);
  if (const int32_t id = bpe_.ignore_merges_ ? bpe_.find(word) : -1; id >= 0) {
    ids.push_back(id);
    return;
  }
  bpe_.cut(word, cuts_);
  size_t begin = 0;
  for (const size_t end : cuts_) {
    encode_part(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

void Bpe::Encoder::encode_part(std::string_view part, std::vector<int32_t>& ids) {
  if (const auto known = known_.find(part); known != known_.end()) {
    const auto begin = known_ids_.begin() + static_cast<ptrdiff_t>(known->second.first);
    ids.insert(ids.end(), begin, begin + static_cast<ptrdiff_t>(known->second.second));
    return;
  }
  const size_t before = ids.size();
  if (const int32_t id = bpe_.ignore_merges_ ? bpe_.find(part) : -1; id >= 0) {
    ids.push_back(id);
  } else {
    symbols_.clear();
    bool unknown = false;  // true if the last symbol is the unknown token
    for (size_t at = 0; at < part.size();) {
      const std::string_view character = part.substr(at, character_bytes(part[at]));
      at += character.size();
      if (const int32_t own = bpe_.find_character(character); own >= 0) {
        add(own);
        unknown = false;
      } else if (!bpe_.bytes_.empty()) {
        for (const char c : character) add(bpe_.bytes_[static_cast<uint8_t>(c)]);
      } else if (bpe_.unknown_ >= 0) {
        if (!unknown || !bpe_.fuse_unknown_) add(bpe_.unknown_);
        unknown = true;
      }
    }
    merge();
    for (uint32_t at = 0; at < symbols_.size(); at = symbols_[at].next) ids.push_back(symbols_[at].id);
  }
  if (part.size() > kKnownBytes || known_.size() == kKnownWords) return;
  known_words_.emplace_back(part);
  known_.emplace(known_words_.back(), std::pair(known_ids_.size(), ids.size() - before));
  known_ids_.insert(known_ids_.end(), ids.begin() + static_cast<ptrdiff_t>(before), ids.end());
}

void Bpe::Encoder::add(int32_t id) {
  const auto at = static_cast<uint32_t>(symbols_.size());
  symbols_.push_back({id, at - 1, at + 1});  // kNoSymbol before the first symbol
}

void Bpe::Encoder::merge() {
  const auto size = static_cast<uint32_t>(symbols_.size());
  const auto later = std::greater<>();
  const auto merge_at = [&](uint32_t left) -> const Merge* {
    const uint32_t right = symbols_[left].next;
    return right < size ? bpe_.find_merge(symbols_[left].id, symbols_[right].id) : nullptr;
  };
  queue_.clear();
  for (uint32_t at = 0; at < size; ++at)
    if (const Merge* merge = merge_at(at)) queue_.emplace_back(merge->rank, at);
  std::make_heap(queue_.begin(), queue_.end(), later);
  const auto push = [&](uint32_t at) {
    const Merge* merge = merge_at(at);
    if (merge == nullptr) return;
    queue_.emplace_back(merge->rank, at);
    std::push_heap(queue_.begin(), queue_.end(), later);
  };
  while (!queue_.empty()) {
    const auto [rank, at] = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end(), later);
    queue_.pop_back();
    Symbol& left = symbols_[at];
    if (left.id < 0) continue;  // the symbol was merged into another
    const Merge* merge = merge_at(at);
    if (merge == nullptr || merge->rank != rank) continue;  // one of the symbols has changed meanwhile
    Symbol& right = symbols_[left.next];
    left.id = merge->id;
    left.next = right.next;
    right.id = -1;
    if (left.next < size) symbols_[left.next].previous = at;
    if (left.previous != kNoSymbol) push(left.previous);
    push(at);
  }
}

}  // namespace twofour
