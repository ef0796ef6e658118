#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// The figures of a row of logits for the token that follows.
struct TokenScore {
  double log_sum = 0;     ///< log of the sum of exp(logit)
  double loss = 0;        ///< log_sum minus the token's logit: its negative log-likelihood in nats
  double divergence = 0;  ///< KL(other || model) in nats; 0 without another
  int32_t top = 0;        ///< the most probable token, the lowest of equal ones
};

/// Rows after the last layer of a model, and the scores of the tokens that follow.
struct ScoredRows {
  const Decoder& model;
  std::span<const float> hidden;        ///< [rows, H]
  std::vector<TokenScore> scores = {};  ///< [rows], the output
};

/// Scores `tokens` [rows] by a model and, if not nullptr, by another with the same vocabulary, which counts
/// as the truth. If both are on a CUDA device, logits stay there.
void score_tokens(std::span<const int32_t> tokens, ScoredRows& rows, ScoredRows* other);

/// Bytes of logits that one model takes at a time.
inline constexpr uint64_t kScoredBytes = 64 << 20;

}  // namespace twofour
