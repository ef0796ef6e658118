#pragma once
#include <string_view>

namespace twofour {

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

/// What the models of a model_type compute beside what the rows of formats/families say of their tensors and
/// those of family_routers of their routers.
/// Sources: Hugging Face transformers 5.17, src/transformers/models/*/{configuration,modeling}_*.py.
struct FamilyTraits {
  const char* model_type;
  WindowRule windows = WindowRule::kNone;
  int window = 0;  ///< where the config has no sliding_window
  RopePairs pairs = RopePairs::kHalves;
  double epsilon = 1e-6;      ///< where the config has no rms_norm_eps
  double theta = 10000;       ///< where it has no rope_theta
  double rotated = 1;         ///< where it has no partial_rotary_factor
  bool clamps_gates = false;  ///< gpt-oss: sigmoid(1.702 gate), up + 1, both clamped
  int positions = 0;          ///< where it has no max_position_embeddings
};

/// nullptr: it cannot be run.
const FamilyTraits* find_family_traits(std::string_view model_type);

}  // namespace twofour
