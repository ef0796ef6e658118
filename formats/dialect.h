#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// How a producer names the tensors of an NVFP4 module and what its global scale means.
struct Nvfp4Dialect {
  const char* name;                                ///< of the producer
  const char* quant_method;                        ///< in config.json
  const char *codes, *block_scale, *global_scale;  ///< suffixes behind the module's name
  const char* input_scale;                         ///< of W4A4 checkpoints; the tensor may be absent
  bool divides;                                    ///< the stored global scale divides: the multiplier is 1/G
  /// Stacks of experts, [E, ...]; K may be the dimension before the last.
  bool stacked;
  bool known_by_input = false;  ///< only its input scale distinguishes it from another row
};

/// Every NVFP4 dialect twofour reads. Sources: NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py;
/// vllm-project/compressed-tensors, compressors/nvfp4/base.py; vLLM, quantization/quark.
std::span<const Nvfp4Dialect> nvfp4_dialects();

/// The multiplier of a stored global scale: the scale itself or, if the dialect divides, 1/G (one IEEE
/// float32 division).
float global_scale_multiplier(const Nvfp4Dialect& dialect, float stored);

/// One NVFP4 module as its tensors describe it. Indices count in the sequence given to find_nvfp4_modules.
struct Nvfp4Linear {
  std::string name;  ///< without the dialect's suffix
  const Nvfp4Dialect* dialect;
  size_t codes, block_scale, global_scale;
  std::optional<size_t> input_scale;
  int64_t e = 1, n = 0, k = 0;
  /// Codes are [E, K/2, N] and scales [E, K/16, N] (ModelOpt's stacked experts) instead of K contiguous.
  bool k_outer = false;
};

/// Finds the NVFP4 modules among tensors sorted by name, from their names, types and shapes alone. Throws
/// Error if a module's tensors disagree: a code tensor of the wrong type, shapes that don't fit, K not a
/// multiple of 16, a scale without its codes. `where` names the file of a tensor for messages.
std::vector<Nvfp4Linear> find_nvfp4_modules(std::span<const TensorInfo> tensors,
                                            const std::function<std::string(size_t)>& where);

/// The module of the tensor at `global_scale`; empty if that tensor is no global scale. Throws as above.
std::optional<Nvfp4Linear> read_nvfp4_module(std::span<const TensorInfo> tensors, size_t global_scale,
                                             const std::function<std::string(size_t)>& where);

/// The end of messages about weights in a format that is known and not read: they are not damaged.
inline constexpr const char* kNotSupported = ", which is not supported";

/// Codes in a format that is known by its names only: they are reported, not read.
struct UnreadCodes {
  size_t tensor;       ///< the codes
  std::string module;  ///< "model.layers.0.mlp.up_proj"
  const char* format;  ///< "torchao's NVFP4Tensor"
};
/// All such codes; `tensors` are sorted by name.
std::vector<UnreadCodes> find_unread_codes(std::span<const TensorInfo> tensors);

/// Position of `name` among tensors sorted by name.
std::optional<size_t> find_tensor(std::span<const TensorInfo> tensors, std::string_view name);

}  // namespace twofour
