#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/families/sizes.h"

namespace twofour {

/// The settings of a config.json. Each is checked as it is read. Functions throw Error on impossible values.
class Settings {
 public:
  /// `family`, `config` and `whole` must outlive this object. `where` names the file in messages. `whole` is
  /// the config that nests `config` and has the keys that it lacks, or nullptr.
  Settings(const FamilyShapes& family, const Json& config, std::string where, const Json* whole = nullptr);

  const FamilySizes& sizes() const { return sizes_; }
  const Json& config() const { return *config_; }
  /// True if the config has the key, even with the value null.
  bool has(std::string_view key) const;
  /// Returns a whole number that must be at least `least`. If the config lacks it, the family's value for
  /// `layer` applies.
  int64_t count(std::string_view key, int64_t least = 1, int64_t layer = -1) const;
  /// Returns a finite number above 0 or, if `zero`, of at least 0. Returns `otherwise` if the config lacks
  /// the key.
  double positive(std::string_view key, double otherwise, bool zero = false) const;
  /// Returns a boolean. Returns `otherwise` if the config lacks the key. Throws Error on null instead of
  /// true.
  bool yes(std::string_view key, bool otherwise) const;
  /// Returns a text. Empty if the config lacks the key.
  std::string text(std::string_view key) const;

  /// Throws Error "config.json: KEY: expected X, found Y". For a nested object, its name stands before the
  /// key: "rope_scaling.".
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

  /// True if the head is the embedding. A config that nests another one decides, as in transformers.
  bool has_tied_head() const;
  /// Returns the settings of a nested object.
  Settings below(std::string_view key) const;

 private:
  const Json* find(std::string_view key) const;

  const Json *config_, *whole_;
  FamilySizes sizes_;
  std::string where_;
};

}  // namespace twofour
