#pragma once
#include <map>
#include <string>
#include <vector>

#include "lib/lint/config/coded_modules.h"

namespace twofour {

/// A module of a layer, or a tensor that is in no module. Its name follows the layer's number.
struct LayerPart {
  size_t tensor;           ///< position of the tensor that shows the size
  int64_t n = -1, k = -1;  ///< size of a matrix; a vector has only n; -1: unknown
  bool operator==(const LayerPart& other) const { return n == other.n && k == other.k; }
};

/// The modules of one layer, in any format. The first expert stands for all experts.
struct LayerTensors {
  int64_t layer = 0;
  std::map<std::string, LayerPart> parts;
};

/// The layers whose names have one prefix before the number: "model.layers".
struct LayerGroup {
  std::string container;             ///< the prefix
  std::vector<LayerTensors> layers;  ///< sorted by number
  /// True for layers of a draft: "mtp.layers", "model.mtp.layers".
  bool is_draft() const;
  /// True for layers of a tower for images or sound.
  bool is_aside() const;
};

/// Returns all groups of layers. The first is the largest that is neither a draft nor a tower.
std::vector<LayerGroup> find_layer_groups(const LintInput& input, const std::vector<CodedModule>& coded);

/// Returns modules and vectors outside of layers, by name: "model.embed_tokens".
std::map<std::string, LayerPart> find_outer_parts(const LintInput& input,
                                                  const std::vector<CodedModule>& coded);

}  // namespace twofour
