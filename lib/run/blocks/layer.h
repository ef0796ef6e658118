#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/compressed_attention.h"
#include "kernels/device/device_memory.h"
#include "lib/source/model/model_shape.h"

namespace twofour {

/// The state of one layer after the tokens of a sequence so far.
struct LayerCache {
  std::vector<float> keys, values;       ///< cache of a layer with attention
  std::vector<float> window, recurrent;  ///< the states of linear attention or Mamba-2, see DeltaShape
  /// The state of a layer with compressed entries, whose window is in `keys`: the entries, keys of the index,
  /// and the tokens that have no entry yet.
  std::vector<float> entries, index_keys;
  cpu::CompressorState compressor, index_compressor;
};

/// Consecutive tokens of one sequence in a batch.
struct SequencePart {
  int64_t count = 0;  ///< number of tokens
  int64_t begin = 0;  ///< position of the first token
  /// The cache of the layer that runs. It has the tokens before `begin`, and the layer adds these tokens to
  /// it. nullptr: no cache.
  LayerCache* cache = nullptr;
  /// The tokens' ids, for layers that choose experts by a table of tokens. nullptr: the model has none.
  const int32_t* ids = nullptr;
};

/// Stages of a layer. The inputs of the linears of a stage depend only on linears of earlier stages.
enum class LayerStage {
  kAttentionInput,
  kLatent,
  kMixedHeads,
  kAttentionOutput,
  kFeedForwardInput,
  kExpertInput,  ///< input of experts whose inputs are projected
  kDown,
  kExpertOutput  ///< output of experts whose outputs are projected
};
enum class LayerHalf { kAttention, kFeedForward };
LayerHalf half_of(LayerStage stage);

/// Linears of a layer that have the same input.
struct InputGroup {
  std::vector<std::string> linears;  ///< names in the files; experts of stacks have one name each
  int64_t k = 0;
  LayerStage stage = LayerStage::kAttentionInput;
  bool adds = false;       ///< the group has one linear, whose output is added to the residual stream
                           ///< unchanged
  int64_t times = 1;       ///< number of experts whose linears see each token
  int64_t expert = -1;     ///< the expert that all of these linears belong to; -1: no expert or all experts
  int64_t inputs = 1;      ///< inputs of each token, one for each block of rows of the linears
  std::string block = {};  ///< for experts: name of their block, as "model.layers.0.mlp.experts"
};

/// Observes values of a layer while it runs.
class LayerWatcher {
 public:
  virtual ~LayerWatcher() = default;
  /// Receives the inputs of a group. `group` is its index in Decoder::input_groups(). `x` [rows, k] has the
  /// inputs of `tokens`, which are indices in the batch. If `tokens` is empty, they are the inputs of all
  /// tokens in order. Groups of experts may come from several threads at the same time, but each group comes
  /// from only one.
  virtual void see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) = 0;
  /// True if see_input() has a use for the inputs of a group. The others may be left out.
  virtual bool wants(size_t) const { return true; }
  /// Takes the inputs of a group on the device instead of see_input(). `x` [rows, k] is complete after the
  /// work on `stream`, and may change after the next work on it. Returns false if it does not take them.
  virtual bool see_on_device(size_t, const float*, int64_t, int64_t, std::span<const int64_t>,
                             const cuda::DeviceStream&) {
    return false;
  }
  /// Receives the sum over tokens of the norms of an expert's contributions to its layer.
  virtual void see_expert(int64_t expert, double sum_of_norms) = 0;
};

/// Options for running half a layer.
struct HalfRun {
  LayerWatcher* watcher = nullptr;
  /// The last stage whose inputs are computed; `hidden` then does not change. If nothing is set, all stages
  /// run and `hidden` becomes the output of the half.
  std::optional<LayerStage> last{};
  ExpertChoice* chosen = nullptr;       ///< receives the experts that the router chooses
  const ExpertChoice* given = nullptr;  ///< experts to use instead of those that the router would choose
  /// The inputs of the half's last linear for all tokens, as a watcher saw them, on the side of `hidden`. The
  /// run begins with that linear. nullptr: it begins with the norm. See Decoder::can_begin_late().
  const float* late = nullptr;
};

}  // namespace twofour
