#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/io/hash.h"

namespace twofour {

/// Which tensors of one or two checkpoints make another, byte for byte: what `graft` and `drop` do. Numbers
/// and order of experts are the source's.
struct Edit {
  enum class Kind { kNone, kGraft, kDropModules, kDropExperts };
  Kind kind = Kind::kNone;
  /// Names, globs, "re:..." or roles, of modules or tensors: those that come from the donor, or that go.
  std::vector<std::string> patterns = {};
  /// kDropExperts: the experts that stay, ascending, by block ("model.layers.3.mlp.experts").
  std::map<std::string, std::vector<int64_t>> experts = {};

  explicit operator bool() const { return kind != Kind::kNone; }
  /// The command: "graft" or "drop"; empty for none.
  std::string_view name() const;
};

/// What a graft notes of its base in twofour.json, where nothing of it was replaced: a drop of all that came
/// gives the base back.
struct GraftBase {
  Hash128 tensors;                           ///< hash_descriptions() of the base
  std::map<std::string, std::string> texts;  ///< its config files, byte for byte
};
/// Over names, types and shapes.
Hash128 hash_descriptions(std::span<const TensorInfo> tensors);
Json graft_base_to_json(const GraftBase& base);
/// The inverse. Throws Error naming `where` or Json::exception on anything else.
GraftBase graft_base_from_json(std::string_view where, const Json& json);

/// {"graft": {"take": [...]}}, {"drop": {"modules": [...]}} or {"drop": {"experts": {...}}}.
Json edit_to_json(const Edit& edit);
/// The inverse. Throws Json::exception on anything else.
Edit edit_from_json(const Json& json);

}  // namespace twofour
