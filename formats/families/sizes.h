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

/// A model of a family: its row and what its config.json says, or the family says where that is silent.
class FamilySizes {
 public:
  /// `config` is that of the language model, which multimodal ones nest in another, `whole`: what it lacks
  /// is looked up there, if that is given. Both outlive this.
  FamilySizes(const FamilyShapes& family, const Json& config, const Json* whole = nullptr);
  const FamilyShapes& family() const { return *family_; }
  const std::vector<FamilyRow>& rows() const { return *rows_; }

  /// The number under a key, of a list that of the layer. Nothing where it says none, or what is none: text,
  /// fractions, less than 0, more than 2^40.
  std::optional<int64_t> number(std::string_view key, int64_t layer = -1) const;
  /// The value of an expression, as rows have them. Nothing where a key has none, and where a quotient is no
  /// whole number.
  std::optional<int64_t> size(std::string_view expression, int64_t layer = -1) const;
  /// Whether all terms of a condition hold; `may` always does.
  bool holds(std::string_view condition, int64_t layer = -1) const;
  /// The text under a key, of a list that of the layer; empty where there is none.
  std::string_view text(std::string_view key, int64_t layer = -1) const;
  /// Whether a list under the key has the number.
  bool lists(std::string_view key, int64_t number) const;
  /// What the config says under a key, "A.B" being B of the object A; nullptr where it has no such key or
  /// null.
  const Json* stated(std::string_view key) const;
  bool is_list(std::string_view key) const;

  /// The keys of the config on which an expression depends, through what is taken where it lacks one, too.
  std::vector<std::string> keys(std::string_view expression) const;

  /// Takes a number in place of what the config says; `key` need not be in it.
  void set(std::string_view key, int64_t value) { numbers_[std::string(key)] = value; }
  /// The class that a layer has whatever the config says.
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
