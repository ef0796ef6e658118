#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/lint/family/family_tensors.h"

namespace twofour {

/// Which rows of a family have tensors, layer by layer. Tensors of no layer are in layer -1.
class FamilyPresence {
 public:
  FamilyPresence(const LintInput& input, const LanguageModel& model);

  const std::vector<FamilyRow>& rows() const { return all_.rows; }
  const std::vector<FamilyTensor>& tensors() const { return all_.tensors; }
  const std::vector<UnknownTensors>& unknown() const { return all_.unknown; }
  /// The layers of the model, and of its drafts, that have any tensor.
  const std::vector<int64_t>& layers() const { return all_.layers; }
  /// Those where a row may have tensors.
  std::vector<int64_t> layers_of(const FamilyRow& row) const;
  const FamilyRow& row_of(const FamilyTensor& tensor) const {
    return all_.rows[static_cast<size_t>(tensor.row)];
  }

  /// Tensors of a row in a layer, and the first of them, which there must be.
  size_t count(size_t row, int64_t layer) const;
  size_t first(size_t row, int64_t layer) const { return firsts_[row].at(layer); }
  /// Tensors of a row by layer.
  const std::map<int64_t, size_t>& counts(size_t row) const { return counts_[row]; }

  /// Whether a row is not missing, as the layer has the same in another way.
  bool is_replaced(size_t row, int64_t layer) const;
  /// Whether an earlier row is the same tensor under another name.
  bool is_second_name(size_t row) const;
  /// Whether layers have the names of the family's own class: producers may write those of another in their
  /// place where the row is open.
  bool has_own_names() const { return has_own_names_; }

 private:
  bool any_in(const std::string& form, size_t row, int64_t layer) const;

  FamilyTensors all_;
  std::vector<std::map<int64_t, size_t>> counts_, firsts_;  ///< of each row by layer: tensors, the first
  std::vector<std::string> forms_;                          ///< of each row
  bool has_own_names_ = true;
};

/// "model.layers.3.mlp.gate.weight"
std::string name_in_layer(const FamilyRow& row, int64_t layer);

}  // namespace twofour
