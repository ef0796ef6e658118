#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// A token that a model chose, and the logarithm of its probability.
struct GeneratedToken {
  int32_t token = 0;
  double log_probability = 0;
};

struct Generation {
  std::vector<GeneratedToken> tokens;
  bool is_ended = false;  ///< true: the last token ends the text; false: the number of tokens was reached
};

/// Continues a prompt of at least one token by greedy decoding; ties go to the lowest id. Stops after `most`
/// tokens, at the end of the model's positions, or after a token in `ends`. Throws Error if logits are not
/// finite.
/// Calls `chosen` with all tokens so far after each choice.
Generation generate(const Decoder& model, std::span<const int32_t> prompt, int64_t most,
                    std::span<const int32_t> ends,
                    const std::function<void(std::span<const GeneratedToken>)>& chosen = {});

/// The tokens that end a text, from generation_config.json beside the model or else from config.json and the
/// configs of the language model in it. A text ends at any of them. Throws
/// Error if eos_token_id is neither a token nor a list of tokens.
std::vector<int32_t> ending_tokens(const Checkpoint& checkpoint);

}  // namespace twofour
