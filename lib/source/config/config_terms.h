#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A setting of a configuration that changes the meaning of all weights, or that has no meaning.
struct ConfigTerm {
  std::string file;                  ///< "config.json" or "hf_quant_config.json"
  std::string key;                   ///< full path: "quantization_config.transform_config"
  std::string problem;               ///< "expected X, found Y"
  const char* rule = "weight-term";  ///< id of the lint rule that reports the term
};

/// Returns the keys of a quantization config that decide values and have another JSON type than readers
/// expect, such as `sym: 1` or `symmetric: "false"`. Keys that no reader uses are ignored. `file` and
/// `place`, the path of `entry`, are copied into the results.
std::vector<ConfigTerm> find_odd_types(const std::string& file, const std::string& place, const Json& entry);

/// Returns all such settings of both files. Transforms of the inputs (Hadamard matrices, rotations) that are
/// stored in the weights count wherever a quantization entry states them. With `tensors`, algorithms that
/// scale inputs or add low-rank matrices count, too, if no tensor holds the scales or matrices. So do
/// `pre_quant_scale` and `has_zero_point`, which promise tensors, settings that name an arrangement of bytes
/// (arrangement_words.h), and the results of find_odd_types(). In an artifact, the source's entry is searched
/// as well. Sources: compressed-tensors, transform/transform_config.py; AMD Quark, algo_config and
/// pre_quant_opt_config; AutoRound, rotation_config; transformers, FPQuantConfig and HiggsConfig;
/// NVIDIA/Model-Optimizer, export/quant_utils.py.
std::vector<ConfigTerm> find_config_terms(const Json& config, const Json& hf_quant_config,
                                          std::span<const TensorInfo> tensors);

/// Returns the transforms that the files of kSideConfigs in a directory state, and an adapter that is not
/// merged, adapter_config.json. Throws Error like read_side_configs().
std::vector<ConfigTerm> find_side_terms(const std::filesystem::path& directory);

/// Returns the settings in the configs by which a checkpoint's values are read.
std::vector<ConfigTerm> find_config_terms(const Checkpoint& checkpoint, std::span<const TensorInfo> tensors);

/// Returns "DIRECTORY/config.json: KEY: expected X, found Y".
std::string text_of(const Checkpoint& checkpoint, const ConfigTerm& term);

}  // namespace twofour
