#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Converts text to tokens and back, as a tokenizer.json defines it. The model is byte pair encoding, either
/// on bytes (GPT-2, Llama-3, Qwen, SmolLM2) or with tokens for the bytes of unknown characters (Llama-2,
/// Mixtral). Ids and texts equal the results of Hugging Face's `tokenizers` 0.23. Truncation and padding are
/// not done, as in transformers. Several threads may use a tokenizer at once.
class Tokenizer {
 public:
  /// Loads a tokenizer.json. `path` is the file or a directory that has it. Throws Error, naming file and
  /// field, on models other than BPE, on parts that no supported family has, and on invalid values.
  static Tokenizer load(const std::filesystem::path& path);
  /// Parses the text of a tokenizer.json. `where` is the file's name in messages.
  static Tokenizer parse(std::string_view where, std::string_view text);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// One more than the largest id.
  int32_t vocabulary_size() const;
  /// Returns the id of a token. -1 if there is none.
  int32_t find(std::string_view token) const;
  /// Returns the text of a token as the file has it, not decoded. Empty if no token has the id.
  std::string_view token(int32_t id) const;

  /// Returns the ids of a text. With `add_special`, these include the ids that the file puts around a text
  /// (BOS, EOS). A special token in the text always becomes its id. Throws Error with the position of the
  /// first byte that is not UTF-8. `where` is the name of the text in the message.
  std::vector<int32_t> encode(std::string_view text, bool add_special, std::string_view where = "text") const;
  /// Returns the text of ids, without special tokens if `skip_special`. Bytes that are not UTF-8 become
  /// U+FFFD. Ids without a token are left out, as in `tokenizers`, because models have more rows than tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace twofour
