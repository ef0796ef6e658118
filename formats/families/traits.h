#pragma once
#include <cstdint>

#include "formats/naming.h"

// How the models of a family compute, as far as neither tensor names nor config.json show it. These are
// columns of the rows of family.h. Source: Hugging Face transformers 5.17,
// src/transformers/models/*/{configuration,modeling}_*.py; for deepseek, the code in its checkpoints.

namespace twofour {

/// How the files of a family store routed experts in floats. Its loaders know no other form.
enum class ExpertFiles {
  kApart,        ///< each expert has its own matrices; loaders accept them beside stacks, if there are any
  kRowStacks,    ///< [E, 2I, H] and [E, H, I]
  kColumnStacks  ///< [E, H, 2I] and [E, I, H]
};

/// Stacks of experts; gpt-oss and Qwen3.5 use the same names. Files: conversion_mapping.py of transformers; a
/// family with stacks in its model and no conversion from single experts has stacks in its files.
struct ExpertStacks {
  ExpertFiles files = ExpertFiles::kApart;
  GateUpRows rows = GateUpRows::kHalves;
  bool has_bias = false;  ///< "gate_up_proj_bias" is beside the stack
};

/// The function from experts' logits to their scores.
enum class RouterScores {
  kSoftmax,      ///< over all experts
  kSigmoid,      ///< of each
  kSqrtSoftplus  ///< sqrt(log(1 + exp(logit))) of each
};

/// When the weights of the chosen experts are normalized to a sum of 1.
enum class Renormalized {
  kNever,       ///< whatever norm_topk_prob is
  kIfSaid,      ///< if norm_topk_prob is true
  kUnlessSaid,  ///< unless norm_topk_prob is false
  kAlways       ///< norm_topk_prob may not be false
};

/// When experts are chosen from the best topk_group of n_group groups only.
enum class ExpertGroups {
  kNone,
  kIfSaid,  ///< if topk_method is group_limited_greedy; a group's score is its best expert's
  kByTwo    ///< a group's score is the sum of its best two
};

/// How a family chooses experts: by scores of the logits gate.weight x. Other settings in a config are
/// refused, as they describe another router.
struct FamilyRouter {
  RouterScores scores = RouterScores::kSoftmax;
  Renormalized renormalized = Renormalized::kAlways;
  /// A tensor [experts] below the block of gate.weight ("gate.e_score_correction_bias"), added to scores for
  /// the choice only; nullptr: none.
  const char* correction = nullptr;
  double scaling = 0;  ///< of all weights if config.json has no routed_scaling_factor; 0: never scaled
  ExpertGroups groups = ExpertGroups::kNone;
  int group_count = 1, kept_groups = 1;  ///< if config.json has no n_group, topk_group
};

/// Which layers see only a window of keys.
enum class WindowRule {
  kNone,
  kAll,        ///< all layers, if the config has a window
  kAllOrSaid,  ///< the same, or by layer_types
  kIfUsed,     ///< the same, if use_sliding_window is true
  kFrom,       ///< if use_sliding_window is true, layers from max_window_layers on, or by layer_types
  kEven,       ///< if use_sliding_window is true, even layers before max_window_layers, or by layer_types
  kAlternate   ///< even layers, or by layer_types
};

/// Which numbers of a head are rotated together.
enum class RopePairs { kHalves, kNeighbours, kAsSaid };

/// Further settings that the decoder needs to run a family.
struct FamilyTraits {
  int types = 1;  ///< the number of the row's model_types that it runs
  WindowRule windows = WindowRule::kNone;
  int window = 0;  ///< if the config has no sliding_window
  RopePairs pairs = RopePairs::kHalves;
  double epsilon = 1e-6;  ///< if the config has no rms_norm_eps
  double theta = 10000;   ///< if it has no rope_theta
  double rotated = 1;     ///< if it has no partial_rotary_factor
  int positions = 0;      ///< if it has no max_position_embeddings
};

}  // namespace twofour
