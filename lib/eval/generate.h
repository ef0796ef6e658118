#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/decoder/decoder.h"

namespace twofour {

/// A token that a model chose, and the logarithm of the probability that it gave it.
struct GeneratedToken {
  int32_t token = 0;
  double log_probability = 0;
};

struct Generation {
  std::vector<GeneratedToken> tokens;
  bool is_ended = false;  ///< by a token that ends a text, which is the last; else there were enough
};

/// Continues a prompt of at least one token with the most probable token each time, the lowest of equal ones,
/// up to `most` tokens or the model's positions. Throws Error where logits are not finite.
Generation generate(const Decoder& model, std::span<const int32_t> prompt, int64_t most,
                    std::span<const int32_t> ends);

/// The tokens that end a text, as generation_config.json says beside the model, or its config.json. Throws
/// Error on an eos_token_id that is neither a token nor a list of them.
std::vector<int32_t> ending_tokens(const Checkpoint& checkpoint);

}  // namespace twofour
