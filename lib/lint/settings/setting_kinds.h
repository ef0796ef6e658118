#pragma once
#include "formats/json.h"

namespace twofour {

/// The values that a setting takes.
enum class SettingKind {
  kCount,           ///< a whole number of at least 1
  kNumber,          ///< a whole number of at least 0
  kNumberOrAll,     ///< a whole number of at least 0, or -1 for all
  kPositive,        ///< a number of more than 0
  kNotNegative,     ///< a number of at least 0
  kAnyNumber,       ///< a number
  kEpsilon,         ///< more than 0, at most 1e-3
  kShare,           ///< more than 0, at most 1
  kShareOrNothing,  ///< at least 0, at most 1
  kSwitch,          ///< true or false
  kToken,           ///< the number of a token
  kTokens,          ///< the number of a token, or a list of them
  kTokenOrNone,     ///< the number of a token, or -1 for none
};

/// A setting that loaders use without a check. null counts as absent.
struct Setting {
  const char* key;
  SettingKind kind;
};

/// Returns what a value of a kind is, for messages.
const char* expected_of(SettingKind kind);
/// True if a value is of a kind, or null.
bool fits(const Json& value, SettingKind kind);

}  // namespace twofour
