#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// The names that a producer gives to the tensors of an NVFP4 module, and the meaning of the module's global
/// scale.
struct Nvfp4Dialect {
  const char* name;                                ///< name of the producer
  const char* quant_method;                        ///< quant_method in config.json
  const char *codes, *block_scale, *global_scale;  ///< suffixes that follow the module's name
  const char* input_scale;                         ///< suffix in W4A4 checkpoints; the tensor may be absent
  bool divides;  ///< true if the stored global scale G is a divisor; the multiplier is then 1/G
  /// True if modules are stacks of experts [E, ...]. K may then be the dimension before the last.
  bool stacked;
  bool known_by_input = false;  ///< true if only the input scale distinguishes this dialect from another row
};

/// All NVFP4 dialects that twofour reads. Sources: NVIDIA/Model-Optimizer,
/// modelopt/torch/export/quant_utils.py; vllm-project/compressed-tensors, compressors/nvfp4/base.py; vLLM,
/// quantization/quark.
std::span<const Nvfp4Dialect> nvfp4_dialects();

/// The multiplier for a stored global scale. This is the scale itself or, if the dialect divides by the scale
/// G, 1/G in one IEEE float32 division.
float global_scale_multiplier(const Nvfp4Dialect& dialect, float stored);

/// One NVFP4 module, described by its tensors. Indices refer to the sequence that find_nvfp4_modules() was
/// given.
struct Nvfp4Linear {
  std::string name;  ///< name of the module, without the dialect's suffix
  const Nvfp4Dialect* dialect;
  size_t codes, block_scale, global_scale;
  std::optional<size_t> input_scale;
  int64_t e = 1, n = 0, k = 0;
  /// True if codes are [E, K/2, N] and scales are [E, K/16, N], as in ModelOpt's stacked experts. Otherwise K
  /// is contiguous.
  bool k_outer = false;
};

/// Finds the NVFP4 modules among tensors sorted by name. Reads only names, types and shapes. Throws Error if
/// the tensors of a module do not fit: codes of the wrong type, different shapes, a K that is not a multiple
/// of 16, or a scale without codes. `where` returns the file name of a tensor for messages.
std::vector<Nvfp4Linear> find_nvfp4_modules(std::span<const TensorInfo> tensors,
                                            const std::function<std::string(size_t)>& where);

/// Reads the module whose global scale is the tensor at index `global_scale`. Empty if this tensor is not a
/// global scale. Throws like find_nvfp4_modules().
std::optional<Nvfp4Linear> read_nvfp4_module(std::span<const TensorInfo> tensors, size_t global_scale,
                                             const std::function<std::string(size_t)>& where);

/// The end of messages about weights whose format is known but not read. Such weights are not damaged.
inline constexpr const char* kNotSupported = ", which is not supported";

/// Codes in a format of which only the names are known. They are reported, not read.
struct UnreadCodes {
  size_t tensor;       ///< index of the tensor with the codes
  std::string module;  ///< for example "model.layers.0.mlp.up_proj"
  const char* format;  ///< for example "torchao's NVFP4Tensor"
  const char* words;   ///< a text that the quantization entry of such a checkpoint has: "torchao"
};
/// Finds all codes in formats that are not read. `tensors` are sorted by name.
std::vector<UnreadCodes> find_unread_codes(std::span<const TensorInfo> tensors);

/// Index of the tensor called `name`. `tensors` are sorted by name.
std::optional<size_t> find_tensor(std::span<const TensorInfo> tensors, std::string_view name);

}  // namespace twofour
