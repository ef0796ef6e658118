#pragma once
#include <cstdint>

#include "formats/naming.h"

// The computation of the models of a family, as far as tensor names and config.json leave it open: columns
// of the rows of family.h. Source: Hugging Face transformers 5.17,
// src/transformers/models/*/{configuration,modeling}_*.py. For deepseek, the source is the code in its
// checkpoints.

namespace twofour {

/// The form of routed experts in floats in the files of a family. Loaders of the family accept no other form.
enum class ExpertFiles {
  kApart,        ///< separate matrices for each expert; loaders also accept them where files have stacks
  kRowStacks,    ///< [E, 2I, H] and [E, H, I]
  kColumnStacks  ///< [E, H, 2I] and [E, I, H]
};

/// Describes stacks of experts. gpt-oss and Qwen3.5 use the same names for different forms. For the form in
/// files, see conversion_mapping.py of transformers: if a family has stacks in its model and no conversion
/// from single experts, its files have stacks.
struct ExpertStacks {
  ExpertFiles files = ExpertFiles::kApart;
  GateUpRows rows = GateUpRows::kHalves;
  bool has_bias = false;  ///< true if "gate_up_proj_bias" is next to the stack
};

/// The function that turns the logits of experts into scores.
enum class RouterScores {
  kSoftmax,      ///< softmax over all experts
  kSigmoid,      ///< sigmoid of each logit
  kSqrtSoftplus  ///< sqrt(log(1 + exp(logit))) of each logit
};

/// Conditions under which the weights of the chosen experts are normalized to a sum of 1.
enum class Renormalized {
  kNever,             ///< never, regardless of norm_topk_prob
  kIfConfigured,      ///< if norm_topk_prob is true
  kUnlessConfigured,  ///< unless norm_topk_prob is false
  kAlways             ///< always; norm_topk_prob may not be false
};

/// Conditions under which experts are chosen only from the best topk_group of n_group groups.
enum class ExpertGroups {
  kNone,
  kIfConfigured,  ///< if topk_method is group_limited_greedy; a group's score is that of its best expert
  kByTwo          ///< always; a group's score is the sum of its two best scores
};

/// The choice of experts by the scores of the logits gate.weight x. A config with other settings is
/// refused, because these describe another router.
struct FamilyRouter {
  RouterScores scores = RouterScores::kSoftmax;
  Renormalized renormalized = Renormalized::kAlways;
  /// The suffix of a tensor [experts] below the block of gate.weight, for example
  /// "gate.e_score_correction_bias". It is added to the scores only to choose experts. nullptr if there is
  /// none.
  const char* correction = nullptr;
  double scaling = 0;  ///< factor of all weights if config.json has no routed_scaling_factor; 0: never scaled
  ExpertGroups groups = ExpertGroups::kNone;
  int group_count = 1, kept_groups = 1;  ///< defaults for n_group and topk_group of config.json
};

/// The activations of the models of a family, as far as all of them have one kind.
enum class FamilyActivations {
  kAny,
  kSilu,
  kSiluOrRelu,  ///< sparse models have a ReLU
  kGelu         ///< approximated by tanh
};

/// The layers whose attention sees only a window of keys.
enum class WindowRule {
  kNone,
  kAll,              ///< all layers, if the config has a window
  kAllOrConfigured,  ///< like kAll, or by layer_types
  kIfUsed,           ///< like kAll, but only if use_sliding_window is true
  kFrom,             ///< if use_sliding_window is true, layers from max_window_layers on, or by layer_types
  kEven,       ///< if use_sliding_window is true, even layers before max_window_layers, or by layer_types
  kAlternate,  ///< even layers, or by layer_types
  kPattern     ///< all but every sliding_window_pattern-th layer, or by layer_types
};

/// The numbers of a head that are rotated together.
enum class RopePairs { kHalves, kNeighbours, kAsConfigured };

/// Further settings that the decoder needs to run a family.
struct FamilyTraits {
  int types = 1;  ///< number of the row's model_types that the decoder runs
  WindowRule windows = WindowRule::kNone;
  int window = 0;  ///< default for sliding_window
  RopePairs pairs = RopePairs::kHalves;
  double epsilon = 1e-6;  ///< default for rms_norm_eps
  double theta = 10000;   ///< default for rope_theta
  /// True if `theta` is for few positions, so that models for many must state rope_theta.
  bool states_theta = false;
  double rotated = 1;  ///< default for partial_rotary_factor; 0: 1, or by rotary_dim
  int positions = 0;   ///< default for max_position_embeddings
  /// The default for rope_local_base_freq, the base of layers with a window. 0: rope_theta.
  double window_theta = 0;
  /// True for three properties of Gemma: rows of the embedding are multiplied by the root of hidden_size,
  /// queries and keys by that of query_pre_attn_scalar, and gates are gelu, approximated by tanh.
  bool gemma = false;
  bool compressed = false;  ///< true if attention sees compressed entries, as in DeepSeek-V4
  /// True if a layer is one block instead of two halves: Mamba-2, attention without rope, an MLP or experts.
  bool one_block = false;
  bool nested = false;     ///< true if the decoder also runs the text model of a checkpoint with other inputs
  bool clips_qkv = false;  ///< true if queries, keys and values are limited to clip_qkv
};

}  // namespace twofour
