#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// What an NVFP4 checkpoint tells its loader, apart from how each dialect puts it.
struct Nvfp4Config {
  std::vector<std::string> unquantized = {};  ///< as patterns of the dialect that is written
  bool weight_only = false;                   ///< activations stay as they are
  bool fp8_kv_cache = false;
};

/// The `quantization_config` of config.json in ModelOpt's words, and the file that goes with it.
Json modelopt_config(const Nvfp4Config& config);
Json hf_quant_config(const Nvfp4Config& config);
/// In compressed-tensors' words.
Json compressed_tensors_config(const Nvfp4Config& config);

/// Globs as regular expressions that match the same names: "*.mlp.gate" as "re:.*\\.mlp\\.gate$". Exact names
/// stay.
std::vector<std::string> globs_to_regexes(const std::vector<std::string>& globs);

/// Ignore patterns of compressed-tensors as globs that match the same names. A regular expression that no
/// glob says is replaced by those of `names` that it matches.
std::vector<std::string> regexes_to_globs(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& names);

/// Whether the source's KV cache is FP8. Throws Error where it is quantized in a way that not every dialect
/// has.
bool has_fp8_kv_cache(const Checkpoint& source);

/// What the source's configuration says, in the dialect it is converted to. Throws Error where the other
/// dialect has no words for it.
Nvfp4Config translate_config(const Checkpoint& source, bool to_modelopt);

}  // namespace twofour
