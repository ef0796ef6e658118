#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace twofour {

/// Ids of all models are lower; the limit prevents a hostile model from taking all memory.
inline constexpr int32_t kMostIds = 1 << 22;

/// The contents of a file for a model of type BPE.
struct BpeModel {
  std::string where;  ///< for messages
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  ///< the first is merged first
  std::string unknown_token{};                              ///< empty: it has none
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

/// Byte pair encoding. It starts with a word's characters and repeatedly merges the pair that comes first in
/// the list of merges, the leftmost of several, until no pair is in the list. Safe from several threads.
class Bpe {
 public:
  /// Throws Error on tokens or ids that come twice, and on merges from or into unknown tokens.
  explicit Bpe(BpeModel model);

  /// The id of a token; -1: none.
  int32_t find(std::string_view token) const;
  /// Tokens by their ids; empty if no token has the id.
  const std::vector<std::string>& tokens() const { return tokens_; }

  /// Encodes words, and caches words that it has encoded.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe) : bpe_(bpe) {}
    /// Appends the ids of a word. Takes n log n time for n bytes.
    void encode(std::string_view word, std::vector<int32_t>& ids);

   private:
    struct Symbol {
      int32_t id;
      uint32_t previous, next;
    };
    void encode_part(std::string_view part, std::vector<int32_t>& ids);
    void merge();
    void add(int32_t id);

    const Bpe& bpe_;
    std::vector<Symbol> symbols_;
    std::vector<std::pair<uint32_t, uint32_t>> queue_;  ///< rank of the merge, place of its first symbol
    std::vector<size_t> cuts_;
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> known_;  ///< words: ids in known_ids_
    std::deque<std::string> known_words_;
    std::vector<int32_t> known_ids_;
  };

 private:
  struct Merge {
    uint64_t pair;  ///< ids; kNoPair: the place is free
    uint32_t rank;
    int32_t id;  ///< of the merged token
  };
  const Merge* find_merge(int32_t left, int32_t right) const;
  void add_merge(const Merge& merge);
  void note_neighbours(std::string_view left, std::string_view right);
  /// Finds the places where a word may be cut: no merge joins tokens that end and begin with the characters
  /// around the cut.
  void cut(std::string_view word, std::vector<size_t>& cuts) const;
  /// The id of one character; -1: none.
  int32_t find_character(std::string_view character) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<int32_t> short_characters_;  ///< ids of the first code points
  std::vector<Merge> merges_;              ///< a hash table
  std::unordered_set<uint64_t> neighbours_;
  std::vector<int32_t> bytes_;  ///< ids of <0x00> to <0xFF>; empty unless all exist and are used
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace twofour
