#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/source/tokenizer/added_tokens.h"
#include "lib/source/tokenizer/bpe.h"

namespace twofour {

/// The content of a tokenizer.json. Source of the format: huggingface/tokenizers.
struct TokenizerFile {
  Json parts;  ///< the document without the vocabulary and the merges of its model
  BpeModel model;
  std::vector<AddedToken> added_tokens;
};

/// Parses and validates the text of a tokenizer.json. This includes the model, its vocabulary and merges, and
/// the added tokens with the ids that `tokenizers` gives them. Throws Error, naming `where` and the field, on
/// invalid values and on models other than BPE.
TokenizerFile read_tokenizer_file(std::string_view where, std::string_view text);

}  // namespace twofour
