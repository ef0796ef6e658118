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

/// The upper limit of ids. Ids of all known models are lower. The limit prevents a hostile model from taking
/// all memory.
inline constexpr int32_t kMostIds = 1 << 22;

/// The content of a tokenizer file with a model of type BPE.
struct BpeModel {
  std::string where;  ///< name of the file in messages
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  ///< pairs of tokens, in order of their priority
  std::string unknown_token{};                              ///< empty if the model has none
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

/// Byte pair encoding. It starts with the characters of a word. It repeatedly merges the neighbouring pair
/// that comes first in the list of merges. If the pair occurs several times, the leftmost goes first. It ends
/// if no pair is in the list. Several threads may use it at once.
class Bpe {
 public:
  /// Throws Error if a token or an id occurs twice, and on a merge from or into an unknown token.
  explicit Bpe(BpeModel model);

  /// Returns the id of a token. -1 if there is none.
  int32_t find(std::string_view token) const;
  /// The tokens by id. An id without a token has an empty text.
  const std::vector<std::string>& tokens() const { return tokens_; }

  /// Encodes words. It caches the ids of words that it has encoded.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe) : bpe_(bpe) {}
    /// Appends the ids of a word. It takes O(n log n) time for n bytes.
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
    /// Heap of possible merges, with the rank of the merge and the position of its first symbol.
    std::vector<std::pair<uint32_t, uint32_t>> queue_;
    std::vector<size_t> cuts_;
    /// For each cached word, the range of its ids in known_ids_.
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> known_;
    std::deque<std::string> known_words_;
    std::vector<int32_t> known_ids_;
  };

 private:
  struct Merge {
    uint64_t pair;  ///< the ids of both tokens; kNoPair if this slot of the hash table is free
    uint32_t rank;
    int32_t id;  ///< id of the merged token
  };
  const Merge* find_merge(int32_t left, int32_t right) const;
  void add_merge(const Merge& merge);
  void note_neighbours(std::string_view left, std::string_view right);
  /// Finds the places where a word may be cut. No merge crosses them, since none has a left token that ends,
  /// and a right token that begins, with the characters at the cut.
  void cut(std::string_view word, std::vector<size_t>& cuts) const;
  /// Returns the id of a token that is this one character. -1 if there is none.
  int32_t find_character(std::string_view character) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<int32_t> short_characters_;  ///< ids of the characters of up to two bytes
  std::vector<Merge> merges_;              ///< hash table of merges
  std::unordered_set<uint64_t> neighbours_;
  std::vector<int32_t> bytes_;  ///< ids of the tokens <0x00> to <0xFF>; empty unless all exist and are used
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace twofour
