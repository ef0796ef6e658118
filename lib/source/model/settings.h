#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/families/sizes.h"

namespace twofour {

/// The settings of a config.json, each checked as it is read. Functions throw Error on impossible values.
class Settings {
 public:
  /// `family` and `config` must outlive this. `where` names the file.
  Settings(const FamilyShapes& family, const Json& config, std::string where);

  const FamilySizes& sizes() const { return sizes_; }
  const Json& config() const { return *config_; }
  /// True if the config has the key, even as null.
  bool has(std::string_view key) const;
  /// A count of at least `least`; the family's value if the config has none.
  int64_t count(std::string_view key, int64_t least = 1, int64_t layer = -1) const;
  /// A finite number above 0, with `zero` also 0; `otherwise` if the config has no such key.
  double positive(std::string_view key, double otherwise, bool zero = false) const;
  bool yes(std::string_view key, bool otherwise) const;
  /// Empty if the config has no such key.
  std::string text(std::string_view key) const;

  /// "config.json: KEY: expected X, found Y". In a nested object, its name stands before the key:
  /// "rope_scaling."
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

  /// The settings of an object in the config.
  Settings below(std::string_view key) const;

 private:
  const Json* find(std::string_view key) const;

  const Json* config_;
  FamilySizes sizes_;
  std::string where_;
};

}  // namespace twofour
