#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Figures of a row of logits, for the token that follows.
struct TokenScore {
  double log_sum = 0;     ///< logarithm of the sum of exp(logit)
  double loss = 0;        ///< negative log-likelihood of the token in nats: log_sum minus the token's logit
  double divergence = 0;  ///< KL(other || model) in nats; 0 if there is no other model
  int32_t top = 0;        ///< the most probable token; ties go to the lowest id
};

/// Rows after the last layer of a model, and the scores of the tokens that follow them.
struct ScoredRows {
  const Decoder& model;
  std::span<const float> hidden;        ///< [rows, H]
  std::vector<TokenScore> scores = {};  ///< [rows]; the result
};

/// Scores `tokens` [rows] by a model. If `other` is not nullptr, also scores them by another model with the
/// same vocabulary, which serves as the reference. If both models are on a CUDA device, the logits stay
/// there. Calls `scored` with the number of tokens that were scored since the last call.
void score_tokens(std::span<const int32_t> tokens, ScoredRows& rows, ScoredRows* other,
                  const std::function<void(size_t)>& scored = {});

/// Limit in bytes for the logits of one model at a time.
inline constexpr uint64_t kScoredBytes = 64 << 20;

}  // namespace twofour
