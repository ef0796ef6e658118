#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/naming.h"
#include "lib/base/names/pattern.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Stands for an unknown layer count: then no layer is beyond it.
inline constexpr int64_t kNoLayerCount = std::numeric_limits<int64_t>::max();

/// num_hidden_layers of a checkpoint's config.json; kNoLayerCount if it has none.
int64_t layer_count(const Checkpoint& checkpoint);

/// The layer of the language model that a name is in; -1: none, or a layer of `mtp.` or of a tower.
int64_t main_layer(std::string_view name);

/// The draft layer that a name is in, from 0: that of `mtp.layers.N`, `mtp.N` or, at or beyond `layers`,
/// `layers.N`; -1: none.
int64_t draft_layer(std::string_view name, int64_t layers);

/// Names, globs, "re:..." and roles, of modules or tensors, as on the command line.
class ModulePatterns {
 public:
  /// `option` names them in messages. Throws Error on invalid patterns.
  ModulePatterns(const std::vector<std::string>& texts, const char* option);
  /// The matching tensors of a checkpoint with `layers` layers, by position: by their module, their own name
  /// or, for a KV scale, the projection that it belongs to.
  std::vector<bool> select(const Checkpoint& checkpoint, int64_t layers);
  /// Throws Error for the first pattern that has matched nothing in `where`.
  void refuse_unused(const std::string& where) const;
  /// True if one of them is this role.
  bool has(ModuleRole role) const;

 private:
  struct One {
    std::string text;
    std::optional<ModuleRole> role;
    std::optional<NamePattern> pattern;
    bool used = false;
  };
  bool matches(std::string_view module, std::string_view tensor, int64_t layers);

  const char* option_;
  std::vector<One> all_;
};

}  // namespace twofour
