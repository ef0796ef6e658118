#pragma once
#include <optional>
#include <string>

#include "lib/run/blocks/state.h"
#include "lib/source/model/parameters.h"

namespace twofour {

/// Finds weights of one layer by the rows of the family.
class LayerBinder {
 public:
  /// `rows` is the beginning of the names of the layer's rows: "model.layers.#.".
  LayerBinder(DecoderState& state, const FamilySizes& sizes, int64_t layer, const char* rows);

 protected:
  std::optional<Parameter> row(const std::string& name) const {
    return find_parameter(sizes_, rows_ + name, layer_);
  }
  bool has_row(const std::string& name) const { return row(name).has_value(); }
  /// The parameter that the row of the family must have in this layer. Throws Error if there is none.
  Parameter expected(const std::string& name) const;
  ModelMatrix matrix(const std::string& name);
  ModelVector vector(const std::string& name, const char* suffix = ".weight");
  /// The kernels of a convolution over channels [N, 1, K].
  ModelVector convolution(const std::string& name);

  DecoderState& s_;
  const FamilySizes& sizes_;
  const int64_t layer_;
  const std::string rows_, prefix_;  ///< beginnings of the names of rows and of modules
};

}  // namespace twofour
