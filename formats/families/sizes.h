#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/json.h"

namespace twofour {

/// The sizes of a model. They follow from the row of its family, its config.json, and the family's defaults
/// for keys that the config lacks.
class FamilySizes {
 public:
  /// `config` is the config of the language model. A multimodal model nests it in another config, `whole`. If
  /// `whole` is given, it supplies the keys that `config` lacks. Both must outlive this object.
  FamilySizes(const FamilyShapes& family, const Json& config, const Json* whole = nullptr);
  const FamilyShapes& family() const { return *family_; }
  const std::vector<FamilyRow>& rows() const { return *rows_; }

  /// The number under a key. If the value is a list, the number of `layer` in it. Empty if the key is absent
  /// or holds text, a fraction, or a number below 0 or above 2^40.
  std::optional<int64_t> number(std::string_view key, int64_t layer = -1) const;
  /// The value of an expression in a row. Empty if a key has no number or a quotient is not an integer.
  std::optional<int64_t> size(std::string_view expression, int64_t layer = -1) const;
  /// True if all terms of a condition hold. The term `may` always holds.
  bool holds(std::string_view condition, int64_t layer = -1) const;
  /// The text under a key. If the value is a list, the text of `layer` in it. Empty if there is no text.
  std::string_view text(std::string_view key, int64_t layer = -1) const;
  /// True if the list under `key` contains `number`.
  bool lists(std::string_view key, int64_t number) const;
  /// The value of a key in the config. "A.B" means key B of the object A. nullptr if the value is absent or
  /// null.
  const Json* stated(std::string_view key) const;
  bool is_list(std::string_view key) const;

  /// The keys of the config that an expression depends on, directly or through defaults.
  std::vector<std::string> keys(std::string_view expression) const;

  /// Overrides the number under a key of the config. The config need not have the key.
  void set(std::string_view key, int64_t value) { numbers_[std::string(key)] = value; }
  /// Overrides the class of one layer.
  void set_class(int64_t layer, bool is_mlp, std::string_view name) {
    classes_[{layer, is_mlp}] = std::string(name);
  }
  std::string_view mlp(int64_t layer) const { return layer_class(layer, true); }
  std::string_view mixer(int64_t layer) const { return layer_class(layer, false); }

 private:
  std::optional<int64_t> number_at(std::string_view key, int64_t layer, int depth) const;
  std::optional<int64_t> size_at(std::string_view expression, int64_t layer, int depth) const;
  void add_keys(std::string_view expression, std::vector<std::string>& keys, int depth) const;
  std::string_view layer_class(int64_t layer, bool is_mlp) const;
  const Json* default_of(std::string_view key) const;

  const FamilyShapes* family_;
  std::shared_ptr<const std::vector<FamilyRow>> rows_;
  const Json *config_, *whole_;
  Json defaults_;
  std::map<std::string, int64_t, std::less<>> numbers_;
  std::map<std::pair<int64_t, bool>, std::string> classes_;
};

/// The defaults of a row, as an object.
Json family_defaults(const FamilyShapes& family);

/// Calls `f` for each key and number of an expression.
template <class F>
void for_each_factor(std::string_view expression, F&& f) {
  while (!expression.empty()) {
    const size_t end = expression.find_first_of("+*/");
    f(expression.substr(0, end));
    expression = end == expression.npos ? std::string_view() : expression.substr(end + 1);
  }
}

}  // namespace twofour
