#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/lint/family/family_tensors.h"

namespace twofour {

/// Which rows of a family have tensors, for each layer. Tensors outside of layers count as layer -1.
class FamilyPresence {
 public:
  FamilyPresence(FamilyTensors tensors, const LanguageModel& model);

  const std::vector<FamilyRow>& rows() const { return all_.rows; }
  const std::vector<FamilyTensor>& tensors() const { return all_.tensors; }
  const std::vector<UnknownTensors>& unknown() const { return all_.unknown; }
  /// The layers, of the model and its drafts, that have any tensor.
  const std::vector<int64_t>& layers() const { return all_.layers; }
  /// The layers in which a row may have tensors.
  std::vector<int64_t> layers_of(const FamilyRow& row) const;
  /// Returns a row's name in a layer: "model.layers.3.mlp.gate.weight".
  std::string name_in_layer(const FamilyRow& row, int64_t layer) const;
  const FamilyRow& row_of(const FamilyTensor& tensor) const {
    return all_.rows[static_cast<size_t>(tensor.row)];
  }

  /// The number of tensors of a row in a layer. first() returns the first of them, which must exist.
  size_t count(size_t row, int64_t layer) const;
  size_t first(size_t row, int64_t layer) const { return firsts_[row].at(layer); }
  /// The number of tensors of a row for each layer that has any.
  const std::map<int64_t, size_t>& counts(size_t row) const { return counts_[row]; }

  /// True if a layer has the tensors of another form of the row. The row is then not missing.
  bool is_replaced(size_t row, int64_t layer) const;
  /// True if an earlier row is the same tensor under another name.
  bool is_second_name(size_t row) const;
  /// True if the layers have names as in the family's own class. If a family is open, producers may write
  /// the names of another class.
  bool has_own_names() const { return has_own_names_; }

 private:
  bool any_in(const std::string& form, size_t row, int64_t layer) const;

  FamilyTensors all_;
  /// For each row: the number of its tensors, and the first of them, by layer.
  std::vector<std::map<int64_t, size_t>> counts_, firsts_;
  std::vector<std::string> forms_;  ///< form of each row
  bool has_own_names_ = true;
};

}  // namespace twofour
