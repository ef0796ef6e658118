#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

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
  /// The linear of this name. Null if there is none.
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
