#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/run/decoder/decoder.h"
#include "lib/run/eval/windows.h"

namespace twofour {

/// A mean over predictions and its standard error, as if predictions did not depend on each other.
struct MeanFigure {
  double mean = 0, error = 0;
};

/// Predictions at some positions of their windows.
struct PositionFigures {
  int64_t begin = 0, end = 0;
  int64_t predictions = 0;
  double loss = 0;                       ///< mean
  double divergence = 0, agreement = 0;  ///< with another model
};

/// One prediction.
struct EvalPlace {
  int64_t window = 0, position = 0;  ///< of the token that is predicted
  int32_t token = 0;                 ///< the token in the text
  int32_t top = 0, other_top = 0;    ///< the most probable token of both models
  double loss = 0, other_loss = 0, divergence = 0;
};

/// The residual stream after a layer, compared with that of another model.
struct LayerAgreement {
  double cosine = 0;          ///< mean over tokens
  double relative_error = 0;  ///< norm of the difference divided by the other's norm, over all tokens
};

/// The comparison of a model with another, which counts as the truth.
struct AgainstFigures {
  MeanFigure loss;        ///< of the other
  MeanFigure difference;  ///< of losses, model - other, prediction by prediction
  MeanFigure divergence;  ///< KL(other || model) in nats
  double divergence_p99 = 0;
  double agreement = 0;                ///< share of predictions with the same most probable token
  std::vector<LayerAgreement> layers;  ///< empty if the models' layers or widths differ
};

struct EvalFigures {
  int64_t windows = 0, predictions = 0;
  MeanFigure loss;  ///< negative log-likelihood in nats
  std::optional<AgainstFigures> against;
  std::vector<PositionFigures> positions;
  std::vector<EvalPlace> worst;  ///< by divergence, or without another model by loss
};

/// The needs of an evaluation, known before it begins.
struct EvalPlan {
  int64_t windows_at_once = 1;
  uint64_t peak_memory = 0;   ///< bytes, beside the program itself and mapped files
  uint64_t weights_read = 0;  ///< bytes
};
/// Throws Error if a window is longer than a model's positions, or if the models' vocabularies differ.
EvalPlan plan_evaluation(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows);

/// Runs windows through a model, and through another one at the same time, layer by layer. The figures are
/// the same for any number of threads. Throws Error if a model's logits are not finite.
EvalFigures evaluate(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows,
                     Progress& progress);

}  // namespace twofour
