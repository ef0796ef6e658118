#pragma once
#include <fmt/format.h>

#include <string>

namespace twofour {

/// A tokenizer.json of 48 tokens, the letters from A on: byte pair encoding on bytes without a merge.
inline std::string letter_tokenizer() {
  std::string vocabulary;
  for (int i = 0; i < 48; ++i) {
    const char letter = static_cast<char>('A' + i);
    const std::string text = letter == '\\' ? "\\\\" : std::string(1, letter);
    vocabulary += fmt::format("{}\"{}\": {}", i > 0 ? ", " : "", text, i);
  }
  constexpr const char* kBytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  return fmt::format(
      R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {0}, "post_processor": null, "decoder": {0},
      "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {{{1}}}, "merges": []}}}})",
      kBytes, vocabulary);
}

}  // namespace twofour
