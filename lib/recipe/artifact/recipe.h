#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/recipe/settings/json_keys.h"
#include "lib/recipe/settings/recovery.h"
#include "lib/recipe/settings/rule.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The file in which an artifact describes itself: README.md, or TWOFOUR.md beside a README.md of the
/// source's author.
enum class Readme {
  kUnstated,  ///< a recipe from before 0.3.0: there is no file, and config.json does not name the import
  kWritten,
  kLeftOut,
};

/// All settings that decide the bytes of an artifact, which excludes the number of jobs, the device and
/// paths. The first rule that takes a module decides what the module becomes. Modules that no rule takes stay
/// unchanged.
struct Recipe {
  Edit edit = {};                      ///< applied before the rules
  std::vector<Rule> rules = {Rule{}};  ///< by default, the default set to v7
  /// The dialect of the whole output. "source" stands for the source's dialect. If it is empty, each rule
  /// decides.
  std::string dialect = {};
  ZeroPoints zero_points = ZeroPoints::kAsStated;  ///< the form in which the source's INT4 stores them
  uint64_t max_shard_size = 5'000'000'000;
  Readme readme = Readme::kUnstated;
  /// The links in the source whose targets are copied. twofour.json does not record this choice, but lists
  /// the copied files.
  Links links = Links::kInside;
  /// Norms and global scales that were tuned after the rules had chosen the codes.
  std::optional<Recovery> recovery = {};

  Recipe() = default;
  explicit Recipe(Rule rule) : rules{std::move(rule)} {}
  Recipe(Rule rule, uint64_t size) : rules{std::move(rule)}, max_shard_size(size) {}
  /// Makes a recipe without rules. All tensors stay as the edit leaves them. `size` is max_shard_size.
  Recipe(Edit change, uint64_t size) : edit(std::move(change)), rules{}, max_shard_size(size) {}
  /// The result of the recipe in a word. It is "v7" or another target if all rules make the same, otherwise
  /// "mixed". Without rules, it is "graft" or "drop".
  std::string what() const;
};

/// Opens the statistics file that rules were made with. Throws Error if the file's hash is different, if
/// rules need a file and `file` is empty, and if `file` is given but no rule needs it.
void open_statistics(Recipe& recipe, const std::filesystem::path& file);

/// Does the same for the file of masks.
void open_masks(Recipe& recipe, const std::filesystem::path& file);

/// The recipe as JSON for twofour.json, plan.json and resume.
Json recipe_to_json(const Recipe& recipe);
/// Reads what recipe_to_json() returns. If unknown keys are ignored, it also reads a single rule as a recipe,
/// as in format 2 of twofour.json. Throws Error that names `where` on anything else, and on settings that
/// this version does not know.
Recipe recipe_from_json(std::string_view where, const Json& json, UnknownKeys unknown = UnknownKeys::kRefuse);

/// Parses a number of bytes with an optional decimal unit: "5GB", "500MB", "1234". Throws Error on other
/// texts.
uint64_t parse_size(const std::string& text);

}  // namespace twofour
