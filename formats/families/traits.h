#pragma once
#include <cstdint>

#include "formats/naming.h"

// What the models of a family compute that neither the names of their tensors nor config.json say. Columns of
// the rows of family.h. Source: Hugging Face transformers 5.17,
// src/transformers/models/*/{configuration,modeling}_*.py; of deepseek the code that its checkpoints carry.

namespace twofour {

/// How the files of a family hold routed experts in floats, which is all that its loaders know.
enum class ExpertFiles {
  kApart,        ///< each expert its own matrices, which loaders take beside stacks if these exist at all
  kRowStacks,    ///< [E, 2I, H] and [E, H, I]
  kColumnStacks  ///< [E, H, 2I] and [E, I, H]
};

/// Stacks of experts: gpt-oss and Qwen3.5 name theirs alike. Files: conversion_mapping.py of transformers; a
/// family with stacks in its model and no conversion from single experts has stacks in its files.
struct ExpertStacks {
  ExpertFiles files = ExpertFiles::kApart;
  GateUpRows rows = GateUpRows::kHalves;
  bool has_bias = false;  ///< "gate_up_proj_bias" is beside the stack
};

/// What makes scores of experts of their logits.
enum class RouterScores {
  kSoftmax,      ///< over all experts
  kSigmoid,      ///< of each
  kSqrtSoftplus  ///< sqrt(log(1 + exp(logit))) of each
};

/// Whether the weights of chosen experts are brought to a sum of 1.
enum class Renormalized {
  kNever,       ///< whatever norm_topk_prob says
  kIfSaid,      ///< where norm_topk_prob says so
  kUnlessSaid,  ///< where norm_topk_prob does not say otherwise
  kAlways       ///< norm_topk_prob may not say otherwise
};

/// Whether experts come from the best groups of n_group alone, topk_group of them.
enum class ExpertGroups {
  kNone,
  kIfSaid,  ///< where topk_method is group_limited_greedy; a group is as good as its best
  kByTwo    ///< a group is as good as its best two together
};

/// How a family chooses experts: by scores of the logits gate.weight x. Settings other than those that it has
/// are refused, as they describe another router.
struct FamilyRouter {
  RouterScores scores = RouterScores::kSoftmax;
  Renormalized renormalized = Renormalized::kAlways;
  /// A tensor [experts] below the block of gate.weight ("gate.e_score_correction_bias"), added to scores for
  /// the choice alone; nullptr: none.
  const char* correction = nullptr;
  double scaling = 0;  ///< of all weights where config.json has no routed_scaling_factor; 0: never scaled
  ExpertGroups groups = ExpertGroups::kNone;
  int group_count = 1, kept_groups = 1;  ///< where it has no n_group, topk_group
};

/// Which layers see a window of keys alone.
enum class WindowRule {
  kNone,
  kAll,        ///< all layers, where the config has a window
  kAllOrSaid,  ///< the same, or as layer_types says
  kIfUsed,     ///< the same, where use_sliding_window says so
  kFrom,       ///< where that says so, layers from max_window_layers on, or as layer_types says
  kEven,       ///< where that says so, even layers before max_window_layers, or as layer_types says
  kAlternate   ///< even layers, or as layer_types says
};

/// Which numbers of a head are turned together.
enum class RopePairs { kHalves, kNeighbours, kAsSaid };

/// What else the decoder must know to run a family.
struct FamilyTraits {
  int types = 1;  ///< of the row's model_types, how many it runs
  WindowRule windows = WindowRule::kNone;
  int window = 0;  ///< where the config has no sliding_window
  RopePairs pairs = RopePairs::kHalves;
  double epsilon = 1e-6;  ///< where the config has no rms_norm_eps
  double theta = 10000;   ///< where it has no rope_theta
  double rotated = 1;     ///< where it has no partial_rotary_factor
  int positions = 0;      ///< where it has no max_position_embeddings
};

}  // namespace twofour
