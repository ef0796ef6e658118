#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Converts text to tokens and back as a tokenizer.json defines it: byte pair encoding on bytes (GPT-2,
/// Llama-3, Qwen, SmolLM2) or with tokens for the bytes of unknown characters (Llama-2, Mixtral). Ids and
/// texts equal those of Hugging Face's `tokenizers` 0.23. Truncation and padding are left out, as in
/// transformers. Safe from several threads.
class Tokenizer {
 public:
  /// Loads a file, or a directory that has a tokenizer.json. Throws Error naming the file and the field on
  /// models other than BPE, on parts that no supported family has, and on invalid values.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same from the text of a file; `where` is its name in messages.
  static Tokenizer parse(std::string_view where, std::string_view text);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// One more than the highest id.
  int32_t vocabulary_size() const;
  /// The id of a token; -1: there is none.
  int32_t find(std::string_view token) const;
  /// The text of a token as in the file, not decoded; empty if no token has the id.
  std::string_view token(int32_t id) const;

  /// The ids of a text, with those that the file puts around it (BOS, EOS) if `add_special`. Special tokens
  /// in the text become their ids in any case. Throws Error with the position of the first byte that is not
  /// UTF-8; `where` is the name of the text in the message.
  std::vector<int32_t> encode(std::string_view text, bool add_special, std::string_view where = "text") const;
  /// The text of ids, without special tokens if `skip_special`. Bytes that are not UTF-8 become U+FFFD. Ids
  /// that no token has are left out, as in `tokenizers`: models have more rows than tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace twofour
