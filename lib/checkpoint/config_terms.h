#pragma once
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// What a configuration says that changes what all weights mean.
struct ConfigTerm {
  std::string file;     ///< "config.json" or "hf_quant_config.json"
  std::string key;      ///< with all above it: "quantization_config.transform_config"
  std::string problem;  ///< "expected X, found Y"
};

/// All of them: transforms of the inputs (Hadamard matrices, rotations) that are stored in the weights, in
/// either file, wherever a quantization entry or what is below it says so; with `tensors`, algorithms that
/// scale inputs, or add low-rank matrices, where no tensor says by what. An entry that an artifact keeps of
/// its source counts, too.
/// Sources: compressed-tensors, transform/transform_config.py; AMD Quark, algo_config and
/// pre_quant_opt_config; AutoRound, rotation_config; transformers, FPQuantConfig and HiggsConfig;
/// NVIDIA/Model-Optimizer, export/quant_utils.py.
std::vector<ConfigTerm> find_config_terms(const Json& config, const Json& hf_quant_config,
                                          std::span<const TensorInfo> tensors);

/// Those of the configuration that says how a checkpoint's values are read.
std::vector<ConfigTerm> find_config_terms(const Checkpoint& checkpoint, std::span<const TensorInfo> tensors);

/// "DIRECTORY/config.json: KEY: expected X, found Y".
std::string text_of(const Checkpoint& checkpoint, const ConfigTerm& term);

}  // namespace twofour
