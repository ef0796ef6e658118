#include "lib/run/blocks/layer_binder.h"

#include <fmt/format.h>

#include "formats/error.h"

namespace twofour {

LayerBinder::LayerBinder(DecoderState& state, const FamilySizes& sizes, int64_t layer, const char* rows)
    : s_(state),
      sizes_(sizes),
      layer_(layer),
      rows_(rows),
      prefix_(fmt::format("{}layers.{}.", state.weights.prefix(), layer)) {}

Parameter LayerBinder::expected(const std::string& name) const {
  if (const auto found = row(name)) return *found;
  throw Error(fmt::format("{}: expected the size of {}{} in it, found none",
                          (s_.checkpoint.path() / "config.json").string(), prefix_, name));
}

ModelMatrix LayerBinder::matrix(const std::string& name) {
  const Parameter p = expected(name);
  return s_.weights.matrix(prefix_ + name, p.n, p.k, p.has_bias);
}

ModelVector LayerBinder::vector(const std::string& name, const char* suffix) {
  return s_.weights.vector(prefix_ + name + suffix, expected(name).n);
}

ModelVector LayerBinder::convolution(const std::string& name) {
  const Parameter p = expected(name);
  return s_.weights.tensor(prefix_ + name + ".weight", {p.n, 1, p.k});
}

}  // namespace twofour
