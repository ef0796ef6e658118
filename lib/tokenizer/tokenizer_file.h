#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/bpe.h"

namespace twofour {

/// What a tokenizer.json says. Source: huggingface/tokenizers.
struct TokenizerFile {
  Json parts;  ///< the document, without the vocabulary and the merges of its model
  BpeModel model;
  std::vector<AddedToken> added_tokens;
};

/// Parses and validates the text of a tokenizer.json as far as it is data: the model, its vocabulary and
/// merges, and added tokens, whose ids are what `tokenizers` gives them. Throws Error naming `where` and the
/// field, on models other than BPE, too.
TokenizerFile read_tokenizer_file(std::string_view where, std::string_view text);

}  // namespace twofour
