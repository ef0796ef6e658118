#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/io/file.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"

// The model in tokenizer.json: its words show how blanks and bytes are written, and which merges they need.
// Source: huggingface/tokenizers 0.22, models/bpe/model.rs, pre_tokenizers/byte_level.rs;
// transformers, convert_slow_tokenizer.py.

namespace twofour {
namespace {

/// Small models for tests have tokenizers with fewer words.
constexpr size_t kLeastWords = 1000;
constexpr std::string_view kByteBlank = "\u0120", kBlank = "\u2581";

/// True if a text is one letter of UTF-8.
bool is_letter(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }) <=
         1;
}
/// True for "<0x0A>", the token of a byte.
bool is_byte(std::string_view word) {
  return word.size() == 6 && word.starts_with("<0x") && word.ends_with('>') &&
         word.substr(3, 2).find_first_not_of("0123456789ABCDEF") == word.npos;
}

class ModelLint {
 public:
  ModelLint(const LintInput& s, const TokenTable& tokens, LintReporter& reporter)
      : s_(s), tokens_(tokens), reporter_(reporter) {}

  void run() {
    if (tokens_.dropout > 0)
      steps("model.dropout", "expected null, found a share of {} of all merges that are left out at random",
            tokens_.dropout);
    check_unknown();
    if (tokens_.words.size() < kLeastWords) return;
    count_words();
    check_bytes();
    check_blanks();
    check_holes();
    if (tokens_.type == "BPE" && !tokens_.joins_prefixes) check_merges();
  }

 private:
  template <class... Args>
  void steps(const char* key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("tokenizer-steps", {"tokenizer.json", key}, text, std::forward<Args>(args)...);
  }

  void count_words() {
    std::unordered_set<std::string_view> added;
    for (const auto& [number, text] : tokens_.added) added.insert(text);
    for (const auto& [word, number] : tokens_.words) {
      byte_blanks_ += word.starts_with(kByteBlank) ? 1 : 0;
      blanks_ += word.starts_with(kBlank) ? 1 : 0;
      if (is_byte(word)) {
        ++bytes_;
      } else if (!is_letter(word) && !added.contains(word)) {
        long_.insert(number);
      }
    }
  }

  /// The library stops at a letter that no word has if the token for such letters is lost.
  void check_unknown() {
    const bool covers_all =
        TokenTable::has(tokens_.encodes, "ByteLevel") || TokenTable::has(tokens_.normalizes, "ByteLevel");
    if (tokens_.unknown.empty() || covers_all || tokens_.find(tokens_.unknown)) return;
    reporter_.add("missing-token", {"tokenizer.json", "model.unk_token"},
                  "expected a token of the file, found {}", json_quote_short(tokens_.unknown));
  }

  void check_bytes() {
    constexpr size_t kBytes = 256;
    if (tokens_.falls_back && bytes_ < kBytes)
      steps("model.vocab",
            "expected {} tokens of bytes, <0x00> to <0xFF>, because byte_fallback is true, found {}", kBytes,
            bytes_);
    if (!tokens_.falls_back && bytes_ == kBytes && tokens_.type == "BPE")
      steps("model.byte_fallback", "expected true, because there are {} tokens of bytes, found false",
            kBytes);
  }

  /// Words show what stands for blanks. Without the step that writes it, no word with a blank is found.
  void check_blanks() {
    constexpr size_t kShare = 20;
    const auto are = [&](size_t count, size_t others) {
      return count > others && count * kShare > tokens_.words.size();
    };
    const bool encodes =
        TokenTable::has(tokens_.encodes, "ByteLevel") || TokenTable::has(tokens_.normalizes, "ByteLevel");
    if (are(byte_blanks_, blanks_)) {
      if (tokens_.type == "WordLevel")
        steps("model.type", "expected BPE, because words are of bytes, found WordLevel");
      if (!encodes)
        steps("pre_tokenizer", "expected ByteLevel, because {} words begin with {} for a blank, found none",
              byte_blanks_, kByteBlank);
      if (!tokens_.decodes.empty() && !TokenTable::has(tokens_.decodes, "ByteLevel"))
        steps("decoder", "expected ByteLevel, because {} words begin with {} for a blank, found {}",
              byte_blanks_, kByteBlank, tokens_.decodes[0]);
    } else if (are(blanks_, byte_blanks_)) {
      if (!tokens_.writes_blanks)
        steps("normalizer",
              "expected one, or a pre_tokenizer, that writes {} for a blank as {} words have it, found none",
              kBlank, blanks_);
      if (encodes && byte_blanks_ == 0)
        steps("pre_tokenizer", "expected no ByteLevel, because {} words begin with {} for a blank, found it",
              blanks_, kBlank);
      if (!tokens_.decodes.empty() && !tokens_.reads_blanks)
        steps("decoder", "expected one that turns {} into blanks, found {}", kBlank, tokens_.decodes[0]);
    }
    if (tokens_.type == "WordPiece" && tokens_.encodes.empty())
      steps("pre_tokenizer", "expected one that splits texts into words, as WordPiece needs it, found none");
  }

  /// Numbers without tokens are few in published files: places that are reserved.
  void check_holes() {
    constexpr uint64_t kShare = 20;
    std::unordered_set<uint64_t> numbers;
    for (const auto& [word, number] : tokens_.words) numbers.insert(number);
    for (const auto& [number, text] : tokens_.added) numbers.insert(number);
    const uint64_t last = std::max(tokens_.last_word.value_or(0), tokens_.last_added.value_or(0));
    const uint64_t holes = last + 1 - std::min<uint64_t>(last + 1, numbers.size());
    if (holes * kShare <= last) return;
    reporter_.add("tokenizer-size", {"tokenizer.json", "model.vocab"},
                  "expected tokens for all numbers up to {}, found none for {} of them", last, holes);
  }

  void check_merges() {
    // Words are made by merges. Others were added by hand: runs of blanks, tags, names.
    if (long_.size() >= kLeastWords / 2 && tokens_.lost_merges == 0) {
      std::unordered_set<uint64_t> made;
      for (const Merge& merge : tokens_.merges) {
        if (long_.contains(merge.product)) made.insert(merge.product);
      }
      if (4 * made.size() < 3 * long_.size()) {
        return steps("model.merges", "expected merges that make {} words, found merges that make {} of them",
                     long_.size(), made.size());
      }
    }
    check_order();
    check_merge_file();
  }

  /// A merge joins letters and what earlier merges made.
  void check_order() {
    std::unordered_map<uint64_t, size_t> first;
    for (size_t i = 0; i < tokens_.merges.size(); ++i) first.emplace(tokens_.merges[i].product, i);
    size_t late = 0;
    for (size_t i = 0; i < tokens_.merges.size(); ++i) {
      const auto is_late = [&](uint64_t part) {
        const auto at = first.find(part);
        return at != first.end() && at->second >= i;
      };
      if (is_late(tokens_.merges[i].left) || is_late(tokens_.merges[i].right)) ++late;
    }
    if (4 * late > tokens_.merges.size())
      steps("model.merges",
            "expected merges of letters and of what earlier merges make, found {} of {} of later ones", late,
            tokens_.merges.size());
  }

  /// Compares the number of merges in merges.txt, which tokenizers without tokenizer.json read.
  void check_merge_file() {
    constexpr const char* kMerges = "merges.txt";
    std::error_code error;
    const std::filesystem::path path = s_.path / kMerges;
    if (!std::filesystem::is_regular_file(path, error) || tokens_.merges.empty()) return;
    if (find_placeholder(path) && std::filesystem::file_size(path, error) > 0) return;
    std::string text;
    try {
      text = read_text(path);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      return;  // another rule reports a file that cannot be read
    }
    size_t count = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = std::string_view(text).substr(at, end - at);
      if (line.size() > 2 && !line.starts_with("#version")) ++count;
      at = end + 1;
    }
    const size_t own = tokens_.merges.size(), most = std::max(own, count), least = std::min(own, count);
    constexpr size_t kShare = 50;
    if ((most - least) * kShare <= most) return;
    reporter_.add("tokenizer-steps", {kMerges, ""}, "expected {} merges (tokenizer.json), found {}", own,
                  count);
  }

  const LintInput& s_;
  const TokenTable& tokens_;
  LintReporter& reporter_;
  size_t byte_blanks_ = 0, blanks_ = 0;  ///< words that begin with what stands for a blank
  size_t bytes_ = 0;                     ///< tokens of bytes
  std::unordered_set<uint64_t> long_;    ///< words of several letters, without added tokens
};

}  // namespace

void lint_tokenizer_model(const LintInput& s, const TokenTable& tokens, LintReporter& reporter) {
  ModelLint(s, tokens, reporter).run();
}

}  // namespace twofour
