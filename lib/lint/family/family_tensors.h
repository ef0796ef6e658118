#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "lib/lint/bytes/input.h"
#include "lib/source/config/model_config.h"

namespace twofour {

/// True if `architectures` names a class of the family, or names nothing. Another class may have other
/// parameters than the classes of its model_type.
bool is_class_of_family(const Json& config, const LanguageModel& model);
/// Returns the family of a class, given the class's name without the task: "Qwen3Moe". nullptr: no family has
/// it.
const FamilyShapes* find_family_of_class(std::string_view stem);

/// The logical shape of a matrix in any format: E for a stack, N and K. A vector has only N. -1: there is
/// none.
struct LogicalShape {
  int64_t e = -1, n = -1, k = -1;
  bool operator==(const LogicalShape&) const = default;
};

/// A tensor that a row of the family describes.
struct FamilyTensor {
  size_t tensor;
  int32_t row;
  int32_t layer = -1, expert = -1;
  /// nullopt: the stored shape shows no sizes. It is that of an artifact's layout, or it has another rank,
  /// which is then reported.
  std::optional<LogicalShape> shape;
};

/// A name that no row of the family has.
struct UnknownTensors {
  std::string name;  ///< name with # in place of numbers
  size_t first;      ///< position of the first tensor with that name
  size_t count = 0;  ///< number of tensors with that name
};

/// All tensors of a checkpoint, assigned to the rows of its family.
struct FamilyTensors {
  std::vector<FamilyRow> rows;
  std::vector<FamilyTensor> tensors;  ///< in the order of LintInput::tensors
  std::vector<UnknownTensors> unknown;
  std::vector<int64_t> layers;  ///< layers that have any tensor, ascending
  /// Number of a layer in the model minus the number in its name. It is not 0 for drafts with names of their
  /// own: "mtp.layers.0" is the layer after the last.
  int64_t offset = 0;
};
/// Assigns all tensors to the rows of the model's family.
FamilyTensors find_family_tensors(const LintInput& input, const LanguageModel& model);

/// A part of a family, such as a draft or a tower, whose parameters have rows of their own.
struct PartRows {
  std::vector<FamilyRow> rows;
  int64_t offset = 0;             ///< as in FamilyTensors
  int64_t first = 0, end = 1000;  ///< layers of the part, by the numbers in names
};
/// Assigns tensors to the rows of a part. Tensors of other names are left out.
FamilyTensors find_part_tensors(const LintInput& input, const LanguageModel& model, PartRows part);

}  // namespace twofour
