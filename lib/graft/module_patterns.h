#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/naming.h"
#include "lib/base/names/pattern.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// The layer count of a config without num_hidden_layers. The number of every layer is below it.
inline constexpr int64_t kNoLayerCount = std::numeric_limits<int64_t>::max();

/// Returns num_hidden_layers of a checkpoint's config.json, or kNoLayerCount if it has none.
int64_t layer_count(const Checkpoint& checkpoint);

/// The number of the language model's layer that a name is in. -1 if the name is in no layer, or in a layer
/// of `mtp.` or of a tower.
int64_t main_layer(std::string_view name);

/// The number, from 0, of the draft layer that a name is in. Names of draft layers begin with `mtp.layers.N`,
/// `mtp.N` or, for N of `layers` or more, `layers.N`. -1 if the name is in no draft layer.
int64_t draft_layer(std::string_view name, int64_t layers);

/// Patterns that select modules or tensors, as on the command line: names, globs, "re:..." and roles.
class ModulePatterns {
 public:
  /// `option` is the option that gave the patterns, for messages. Throws Error on an invalid pattern.
  ModulePatterns(const std::vector<std::string>& texts, const char* option);
  /// Returns for each tensor of a checkpoint with `layers` layers whether a pattern matches its module or its
  /// own name. For a KV scale, the name of its projection counts, too.
  std::vector<bool> select(const Checkpoint& checkpoint, int64_t layers);
  /// Throws Error for the first pattern that matched nothing. `where` names the checkpoint in the message.
  void refuse_unused(const std::string& where) const;
  /// True if a pattern is this role.
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

/// The tensors of a checkpoint by module. The module of a tensor is its linear or, without one, its name
/// without the last part. The weight of a module is the codes or values of the linear, or its tensor
/// `weight`.
class ModuleTensors {
 public:
  /// `linears` are those of `checkpoint`. Both must outlive this object.
  ModuleTensors(const Checkpoint& checkpoint, const std::vector<Linear>& linears);
  const std::string& module(size_t tensor) const { return modules_[tensor]; }
  /// The weights of the modules that have one, by module.
  const std::map<std::string, size_t>& weights() const { return weights_; }
  /// Finds the linear of this name. Null if it does not exist.
  const Linear* linear(const std::string& module) const;

 private:
  std::vector<std::string> modules_;  ///< by tensor
  std::map<std::string, size_t> weights_;
  std::map<std::string, const Linear*> linears_;
};

/// Marks the tensors of the base that a graft removes. A module goes whole if the donor's weight of it comes.
/// Otherwise only the tensors go that come by name, and those that patterns match and no weight needs.
/// `matched` marks the base's tensors that patterns match, `comes` the donor's tensors that come.
std::vector<bool> find_replaced(const Checkpoint& base, const ModuleTensors& of_base,
                                const std::vector<bool>& matched, const Checkpoint& donor,
                                const ModuleTensors& of_donor, const std::vector<bool>& comes);

/// Throws Error if parts of a quantized module come without its codes, or codes without their parts. A bias
/// may come alone, and so may a scale of activations (of inputs, of a KV cache) that the base has, too, if
/// the module's format is the same in both: no code depends on it, and engines read it in the same way.
void refuse_parts(const Checkpoint& base, const ModuleTensors& of_base, const Checkpoint& donor,
                  const ModuleTensors& of_donor, const std::vector<bool>& comes);

}  // namespace twofour
