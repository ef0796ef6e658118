#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The origin of the bytes of a tensor in an edited checkpoint.
struct TensorOrigin {
  const Checkpoint* from;  ///< the base or the donor
  size_t tensor;           ///< its index in from->tensors()
  /// Indices of the slices of the tensor that are taken, one after the other. All slices have the same size.
  /// Null if the whole tensor is taken.
  const std::vector<int64_t>* slices = nullptr;
  int64_t of = 1;              ///< number of slices in the tensor
  std::vector<int64_t> shape;  ///< shape in the result
};

/// The meaning of an edit. It traces names in the result back to names in the sources, without code of
/// lib/graft.
class EditOrigins {
 public:
  /// `donor` is null unless the edit is a graft.
  EditOrigins(const Edit& edit, const Checkpoint& base, const Checkpoint* donor);
  /// The origin of the tensor with this name. Empty if the result must not have the tensor.
  std::optional<TensorOrigin> of(const std::string& name) const;
  /// True if this tensor of base or donor must be in the result.
  bool stays(const Checkpoint& source, size_t tensor) const;

 private:
  bool matches(std::string_view tensor, int64_t layers) const;
  bool is_replaced(const std::string& name) const;
  std::optional<TensorOrigin> of_experts(const std::string& name) const;
  const std::string* block_at(const std::string& name) const;
  int64_t experts_of(const std::string& block) const;

  const Edit& edit_;
  const Checkpoint& base_;
  const Checkpoint* donor_;
  int64_t base_layers_, donor_layers_;
  std::vector<std::optional<NamePattern>> patterns_;  ///< one for each pattern of the edit; empty if the
                                                      ///< pattern is a role
  std::vector<bool> taken_;                           ///< for each tensor of the donor, whether it was taken
  std::set<std::string> taken_modules_;               ///< those of the donor whose weights were taken
  std::map<std::string, std::string> base_weights_;   ///< names of the base's weights, by module
};

}  // namespace twofour
