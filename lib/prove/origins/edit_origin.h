#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The source of the bytes of a tensor in an edited checkpoint.
struct TensorOrigin {
  const Checkpoint* from;  ///< base or donor
  size_t tensor;           ///< in its tensors()
  /// Equal slices of it, one after the other; null: all of it.
  const std::vector<int64_t>* slices = nullptr;
  int64_t of = 1;              ///< number of slices in it
  std::vector<int64_t> shape;  ///< shape in the result
};

/// The meaning of an edit: traces the names of its result back to those of its sources, without code of
/// lib/graft.
class EditOrigins {
 public:
  /// `donor` is null except for a graft.
  EditOrigins(const Edit& edit, const Checkpoint& base, const Checkpoint* donor);
  /// The origin of a tensor of that name; nullopt if the result must not have it.
  std::optional<TensorOrigin> of(const std::string& name) const;
  /// True if a tensor of base or donor must be in the result.
  bool stays(const Checkpoint& source, size_t tensor) const;

 private:
  bool matches(std::string_view tensor, int64_t layers) const;
  std::optional<TensorOrigin> of_experts(const std::string& name) const;
  const std::string* block_at(const std::string& name) const;
  int64_t experts_of(const std::string& block) const;

  const Edit& edit_;
  const Checkpoint& base_;
  const Checkpoint* donor_;
  int64_t base_layers_, donor_layers_;
  std::vector<std::optional<NamePattern>> patterns_;  ///< by pattern; none: a role
  std::vector<bool> taken_;                           ///< of the donor
  std::vector<std::string> taken_modules_;            ///< sorted
};

}  // namespace twofour
