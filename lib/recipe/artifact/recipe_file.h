#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/artifact/recipe.h"

namespace twofour {

inline constexpr int kRecipeFormat = 1;
inline constexpr size_t kMostRules = 1000;

/// Parses a recipe from a YAML or JSON text. Sets the labels of rules, and leaves omitted settings empty.
/// Throws Error "WHERE:LINE:COLUMN: rules[2].granularity: expected ..., found ..." on anything that
/// recipe_keys() and rule_keys() do not describe.
Recipe read_recipe(const std::string& where, std::string_view text);

/// A key of recipe files, for help.
struct RecipeKey {
  std::string key;
  std::string values;  ///< "tensor, row, block"
  std::string text;    ///< its meaning, the values of `to` that permit it, and the default
};
/// The keys of a recipe file outside of rules, and the keys of a rule.
std::vector<RecipeKey> recipe_keys();
std::vector<RecipeKey> rule_keys();

/// A built-in recipe.
struct ShippedRecipe {
  std::string_view name;
  std::string_view text;             ///< YAML
  std::string_view summary() const;  ///< its first line, a comment
};
std::span<const ShippedRecipe> shipped_recipes();
/// The built-in recipe of that name. Null if there is none.
const ShippedRecipe* find_shipped_recipe(std::string_view name);

}  // namespace twofour
