#pragma once
#include <string>
#include <vector>

#include "lib/source/linears/matrices.h"

namespace twofour {

/// A key whose values differ in the config.json or the generation_config.json of two checkpoints, or the
/// quantization of modules that the two configs state differently.
struct ConfigDifference {
  std::string file;
  std::string key;   ///< its path: "text_config.rope_parameters.rope_theta", "layer_types[3]"
  std::string a, b;  ///< the values as JSON, which may be cut; empty: the key is missing
  /// True if the key may change what a model computes. Keys that are known to change nothing, a key that is
  /// null where the other config lacks it, and formats that differ as the stored weights do are false.
  bool counts = true;
};

/// Compares the configs of two checkpoints by what they mean: numbers as numbers, rope settings in both of
/// their spellings, quantization by what it states of each linear that both have. Compares nothing if a file
/// is missing on one side or is no JSON object.
std::vector<ConfigDifference> compare_configs(const Matrices& a, const Matrices& b);

}  // namespace twofour
