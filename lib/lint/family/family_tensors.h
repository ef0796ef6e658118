#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "lib/lint/bytes/input.h"
#include "lib/source/checkpoint/model_config.h"

namespace twofour {

/// True if `architectures` names a class of the family, or nothing. Another class may have other parameters
/// than its model_type's.
bool is_class_of_family(const Json& config, const LanguageModel& model);
/// The family of a class by its name without the task: "Qwen3Moe"; nullptr: none.
const FamilyShapes* find_family_of_class(std::string_view stem);

/// The logical shape of a matrix in any format: E for a stack, N and K. A vector has only N.
struct LogicalShape {
  int64_t e = -1, n = -1, k = -1;
  bool operator==(const LogicalShape&) const = default;
};

/// A tensor of a row.
struct FamilyTensor {
  size_t tensor;
  int32_t row;
  int32_t layer = -1, expert = -1;
  /// nullopt if the shape gives no sizes: in an artifact's layout, or (reported) of another rank.
  std::optional<LogicalShape> shape;
};

/// A name that no row has.
struct UnknownTensors {
  std::string name;  ///< with # for numbers
  size_t first;      ///< tensor
  size_t count = 0;
};

/// Every tensor of the checkpoint by the rows of its family.
struct FamilyTensors {
  std::vector<FamilyRow> rows;
  std::vector<FamilyTensor> tensors;  ///< in the order of the files' tensors
  std::vector<UnknownTensors> unknown;
  std::vector<int64_t> layers;  ///< layers with any tensor, in order
};
FamilyTensors find_family_tensors(const LintInput& input, const LanguageModel& model);

}  // namespace twofour
