#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/recipe/words/json_words.h"
#include "lib/recipe/words/rule.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Everything that decides the bytes of an artifact. Jobs, device and paths do not belong to it. The first
/// rule that takes a module decides; modules that no rule takes are unchanged.
struct Recipe {
  Edit edit = {};                      ///< before any rule
  std::vector<Rule> rules = {Rule{}};  ///< the default: the default set to v7
  /// Of the whole output; "source": the source's own; empty: the settings of single rules decide.
  std::string dialect = {};
  ZeroPoints zero_points = ZeroPoints::kAsStated;  ///< of the source's INT4
  uint64_t max_shard_size = 5'000'000'000;
  /// The links of the source whose targets are copied. twofour.json does not record this, but lists the
  /// copied files.
  Links links = Links::kInside;

  Recipe() = default;
  explicit Recipe(Rule rule) : rules{std::move(rule)} {}
  Recipe(Rule rule, uint64_t size) : rules{std::move(rule)}, max_shard_size(size) {}
  /// Without rules: all tensors stay as the edit leaves them.
  Recipe(Edit change, uint64_t size) : edit(std::move(change)), rules{}, max_shard_size(size) {}
  /// "v7" if all rules make the same, else "mixed"; without rules "graft" or "drop".
  std::string what() const;
};

/// Opens the statistics file that rules were made with. Throws Error if its hash is different, if it is
/// needed and `file` is empty, and if it is given and not needed.
void open_statistics(Recipe& recipe, const std::filesystem::path& file);

/// The same for the file of masks.
void open_masks(Recipe& recipe, const std::filesystem::path& file);

/// The recipe as JSON for twofour.json, plan.json and resume.
Json recipe_to_json(const Recipe& recipe);
/// The inverse. If unknown keys are ignored, a single rule is also read as a recipe, as in format 2 of
/// twofour.json. Throws Error naming `where` on anything else, and on settings that this version does not
/// know.
Recipe recipe_from_json(std::string_view where, const Json& json, UnknownKeys unknown = UnknownKeys::kRefuse);

/// `size` bytes, decimal: "5GB", "500MB", "1234". Throws Error.
uint64_t parse_size(const std::string& text);

}  // namespace twofour
