#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/run/decoder/decoder.h"
#include "lib/run/eval/windows.h"

namespace twofour {

/// A mean over predictions and its standard error, which treats predictions as independent.
struct MeanFigure {
  double mean = 0, error = 0;
};

/// The predictions at some positions of their windows.
struct PositionFigures {
  int64_t begin = 0, end = 0;
  int64_t predictions = 0;
  double loss = 0;                       ///< mean
  double divergence = 0, agreement = 0;  ///< compared with another model
};

/// One prediction.
struct EvalPlace {
  int64_t window = 0, position = 0;  ///< index of the window, and position in it of the token that is
                                     ///< predicted
  int32_t token = 0;                 ///< the actual token of the text
  int32_t top = 0, other_top = 0;    ///< the most probable token of the model and of the other model
  double loss = 0, other_loss = 0, divergence = 0;
};

/// The residual stream after a layer, compared with that of another model.
struct LayerAgreement {
  double cosine = 0;          ///< mean over tokens
  double relative_error = 0;  ///< norm of the difference divided by the norm of the other model's stream,
                              ///< over all tokens
};

/// The comparison of a model with another model, which serves as the reference.
struct AgainstFigures {
  MeanFigure loss;        ///< the loss of the other model
  MeanFigure difference;  ///< loss of the model minus loss of the other, for each prediction
  MeanFigure divergence;  ///< KL(other || model) in nats
  double divergence_p99 = 0;
  double agreement = 0;                ///< share of predictions for which both models have the same most
                                       ///< probable token
  std::vector<LayerAgreement> layers;  ///< empty if the models differ in layers or width
};

struct EvalFigures {
  int64_t windows = 0, predictions = 0;
  MeanFigure loss;  ///< negative log-likelihood in nats
  std::optional<AgainstFigures> against;
  std::vector<PositionFigures> positions;
  std::vector<EvalPlace> worst;  ///< the worst predictions by divergence, or by loss if there is no other
                                 ///< model
};

/// The needs of an evaluation. It is known before the evaluation begins.
struct EvalPlan {
  int64_t windows_at_once = 1;
  uint64_t peak_memory = 0;   ///< bytes, without the program itself and mapped files
  uint64_t weights_read = 0;  ///< in bytes
};
/// Throws Error if a window has more tokens than a model has positions, or if the vocabularies of the models
/// differ.
EvalPlan plan_evaluation(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows);

/// Runs windows through a model, and through another model at the same time if there is one, layer by layer.
/// The number of threads does not change the figures. Throws Error if logits of a model are not finite.
EvalFigures evaluate(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows,
                     Progress& progress);

}  // namespace twofour
