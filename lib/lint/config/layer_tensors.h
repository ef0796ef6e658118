#pragma once
#include <map>
#include <string>
#include <vector>

#include "lib/lint/config/coded_modules.h"

namespace twofour {

/// A module of a layer, or a tensor without a module, by its name behind the layer's number.
struct LayerPart {
  size_t tensor;           ///< the tensor that shows its size
  int64_t n = -1, k = -1;  ///< size of a matrix; for a vector, n alone; -1: unknown
  bool operator==(const LayerPart& other) const { return n == other.n && k == other.k; }
};

/// The modules of one layer in any format. Only the first expert's are included.
struct LayerTensors {
  int64_t layer = 0;
  std::map<std::string, LayerPart> parts;
};

/// Layers with one prefix before their numbers: "model.layers".
struct LayerGroup {
  std::string container;
  std::vector<LayerTensors> layers;  ///< by number
  /// True for a draft's layers: "mtp.layers", "model.mtp.layers".
  bool is_draft() const;
  /// True for the layers of a tower for images or sound.
  bool is_aside() const;
};

/// All groups, the largest that is neither a draft nor a tower first.
std::vector<LayerGroup> find_layer_groups(const LintInput& input, const std::vector<CodedModule>& coded);

/// Modules and vectors outside of layers: "model.embed_tokens".
std::map<std::string, LayerPart> find_outer_parts(const LintInput& input,
                                                  const std::vector<CodedModule>& coded);

}  // namespace twofour
