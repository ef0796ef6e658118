#pragma once
#include "formats/json.h"

namespace twofour {

/// The types that a key of a config may have.
enum class JsonKind {
  kFlag,           ///< true or false
  kInteger,        ///< a whole number
  kNumber,         ///< a number, for which a fraction may have a meaning
  kIntegerOrPair,  ///< a whole number, or a list of two
  kText,           ///< a string
  kFlagOrText,     ///< true, false or a string
  kSizes,          ///< a list of two whole numbers, or a string such as "128x128"
  kTexts,          ///< a list of strings
  kObject,         ///< an object
};
/// True if a value has the type. null has every type, since it stands for a key that is absent.
bool is_of_kind(const Json& value, JsonKind kind);
/// The name of the type for messages: "true or false".
const char* name_of_kind(JsonKind kind);

}  // namespace twofour
