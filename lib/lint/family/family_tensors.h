#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "lib/checkpoint/model_config.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Whether `architectures` names a class of the family, or nothing at all. A class of its own may have other
/// parameters than its model_type's.
bool is_class_of_family(const Json& config, const LanguageModel& model);
/// The family of a class without what it is for: "Qwen3Moe"; nullptr: none.
const FamilyShapes* find_family_of_class(std::string_view stem);

/// The logical shape of a matrix whatever its format: E where it is a stack, N and K. A vector has N alone.
struct LogicalShape {
  int64_t e = -1, n = -1, k = -1;
  bool operator==(const LogicalShape&) const = default;
};

/// A tensor that belongs to a row.
struct FamilyTensor {
  size_t tensor;
  int32_t row;
  int32_t layer = -1, expert = -1;
  /// Nothing where its shape tells no sizes: of an artifact's layout, or of another rank, which is reported.
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
  std::vector<int64_t> layers;  ///< that have a tensor of any name, in order
};
FamilyTensors find_family_tensors(const LintInput& input, const LanguageModel& model);

}  // namespace twofour
