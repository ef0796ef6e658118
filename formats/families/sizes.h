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

/// A model of a family: its row, its config.json, and the family's defaults for keys that the config lacks.
class FamilySizes {
 public:
  /// `config` is the language model's. Multimodal models nest it in another, `whole`; if given, `whole` has
  /// the keys that `config` lacks. Both must outlive this.
  FamilySizes(const FamilyShapes& family, const Json& config, const Json* whole = nullptr);
  const FamilyShapes& family() const { return *family_; }
  const std::vector<FamilyRow>& rows() const { return *rows_; }

  /// The number under a key, or the layer's if it is a list. Empty if the key is absent or holds text, a
  /// fraction, a number below 0 or above 2^40.
  std::optional<int64_t> number(std::string_view key, int64_t layer = -1) const;
  /// The value of an expression of a row. Empty if a key has no number or a quotient is not an integer.
  std::optional<int64_t> size(std::string_view expression, int64_t layer = -1) const;
  /// True if all terms of a condition hold; `may` always holds.
  bool holds(std::string_view condition, int64_t layer = -1) const;
  /// The text under a key, or the layer's if it is a list; empty if there is none.
  std::string_view text(std::string_view key, int64_t layer = -1) const;
  /// True if the list under the key has the number.
  bool lists(std::string_view key, int64_t number) const;
  /// The value of a key in the config; "A.B" is B of the object A. nullptr: absent or null.
  const Json* stated(std::string_view key) const;
  bool is_list(std::string_view key) const;

  /// The keys of the config that an expression depends on, directly or through defaults.
  std::vector<std::string> keys(std::string_view expression) const;

  /// Overrides the config's number; `key` need not be in it.
  void set(std::string_view key, int64_t value) { numbers_[std::string(key)] = value; }
  /// Overrides the class of a layer.
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

/// The defaults of a row as an object.
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
