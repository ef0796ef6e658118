#pragma once
#include <span>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A setting of a configuration that changes the meaning of all weights.
struct ConfigTerm {
  std::string file;     ///< "config.json" or "hf_quant_config.json"
  std::string key;      ///< full path: "quantization_config.transform_config"
  std::string problem;  ///< "expected X, found Y"
};

/// Returns all such settings of both files. They are transforms of the inputs (Hadamard matrices, rotations)
/// that are stored in the weights, stated anywhere in a quantization entry. With `tensors`, they are also
/// algorithms that scale inputs or add low-rank matrices if no tensor holds the scales or matrices. The
/// source's entry in an artifact counts, too. Sources: compressed-tensors, transform/transform_config.py; AMD
/// Quark, algo_config and pre_quant_opt_config; AutoRound, rotation_config; transformers, FPQuantConfig and
/// HiggsConfig; NVIDIA/Model-Optimizer, export/quant_utils.py.
std::vector<ConfigTerm> find_config_terms(const Json& config, const Json& hf_quant_config,
                                          std::span<const TensorInfo> tensors);

/// The settings of the configuration by which a checkpoint's values are read.
std::vector<ConfigTerm> find_config_terms(const Checkpoint& checkpoint, std::span<const TensorInfo> tensors);

/// "DIRECTORY/config.json: KEY: expected X, found Y".
std::string text_of(const Checkpoint& checkpoint, const ConfigTerm& term);

}  // namespace twofour
