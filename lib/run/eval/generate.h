#pragma once
#include <cstdint>
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
  bool is_ended = false;  ///< the last token ends the text; else the number of tokens was reached
};

/// Continues a prompt of at least one token with the most probable token each time, the lowest of equal ones,
/// up to `most` tokens or the model's positions. Throws Error if logits are not finite.
Generation generate(const Decoder& model, std::span<const int32_t> prompt, int64_t most,
                    std::span<const int32_t> ends);

/// The tokens that end a text, from generation_config.json beside the model, or from config.json. Throws
/// Error on an eos_token_id that is neither a token nor a list of them.
std::vector<int32_t> ending_tokens(const Checkpoint& checkpoint);

}  // namespace twofour
