#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/json.h"
#include "kernels/moe/router.h"

namespace twofour {

/// Norms of queries and keys before they are rotated.
enum class HeadNorm {
  kNone,
  kEach,  ///< of each head
  kAll,   ///< over all heads at once
};

/// The attention of a layer. Latent attention (DeepSeek's) has kv_rank > 0: keys and values come through a
/// low rank, and the rotated part of each head comes from the input, one key for all heads.
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0;
  int64_t head_size = 0, value_size = 0;
  int64_t q_rank = 0, kv_rank = 0;      ///< 0: directly from the input
  std::vector<float> frequencies = {};  ///< angles at position 1, for the pairs of a head that are rotated
  float amplitude = 1;                  ///< of cosine and sine
  bool interleaved = false;             ///< pairs are neighbours; otherwise one number of each half
  int64_t rotated_from = 0;             ///< the first number of a head that is rotated
  double scale = 0;                     ///< of q k
  HeadNorm norm = HeadNorm::kNone;
  bool has_sinks = false;
  double clip = 0;  ///< bound that clamps queries, keys and values; 0: none
};

/// The gate function of an MLP: gate * sigmoid(slope * gate) * (up + offset), both clamped first.
struct GateShape {
  float slope = 1, offset = 0;
  float limit = 0;  ///< gate at most limit, up within it; 0: neither
};

/// A decoder as described by its config.json: everything that defines its arithmetic, but no weights.
struct ModelShape {
  std::string family;  ///< its model_type
  int64_t layers = 0, hidden = 0, vocabulary = 0;
  int64_t positions = 0;  ///< that it was trained for
  double epsilon = 0;     ///< of norms
  AttentionShape attention;
  std::vector<int64_t> windows;  ///< of each layer: keys that a query sees; 0: all
  std::vector<bool> sparse;      ///< of each layer: it has routed experts
  int64_t width = 0;             ///< of dense MLPs
  int64_t experts = 0, top_k = 0, expert_width = 0;
  int64_t shared_width = 0;  ///< of the shared expert; 0: no shared expert
  bool has_shared_gate = false;
  RouterRule router;
  GateShape gate;
  bool is_tied = false;  ///< the head is the embedding
};

class Settings;
/// Reads a config.json. Throws Error on a setting or a rope type that the decoder does not support, and on
/// impossible numbers.
ModelShape read_model_shape(const Settings& settings, const std::string& model_type);

}  // namespace twofour
