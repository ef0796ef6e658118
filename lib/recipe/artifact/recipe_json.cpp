#include <fmt/format.h>

#include <array>
#include <iterator>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/recipe/settings/rule_settings.h"

namespace twofour {
namespace {

/// A kind of edit in JSON, with its command and the key of its only setting.
struct EditKey {
  Edit::Kind kind;
  const char *command, *key;
};
constexpr EditKey kEditKeys[] = {{Edit::Kind::kGraft, "graft", "take"},
                                 {Edit::Kind::kDropModules, "drop", "modules"},
                                 {Edit::Kind::kDropExperts, "drop", "experts"}};

constexpr std::string_view kRepair = "repair", kOnly = "only", kFold = "fold", kInputScale = "input_scale",
                           kAmax = "amax";

/// The settings of a repair that differ from the defaults.
Json write_repair(const RepairSettings& repair) {
  Json json = Json::object();
  if (!repair.only.empty()) json[kOnly] = std::vector<std::string>(repair.only.begin(), repair.only.end());
  if (repair.folds) json[kFold] = "larger";
  if (repair.input_scale != RepairSettings{}.input_scale) json[kInputScale] = repair.input_scale;
  for (const auto& [module, bits] : repair.amax) json[kAmax][module] = fmt::format("{:08x}", bits);
  return json;
}

RepairSettings read_repair(const JsonPlace& place, const Json& json) {
  check_keys(place.where, place.path, json, std::array{kOnly, kFold, kInputScale, kAmax}, place.unknown);
  RepairSettings repair;
  if (json.contains(kOnly)) {
    for (const Json& rule : json.at(kOnly)) repair.only.insert(rule.get<std::string>());
  }
  repair.folds = json.contains(kFold) && json.at(kFold) == "larger";
  if (json.contains(kInputScale)) repair.input_scale = json.at(kInputScale).get<std::string>();
  if (json.contains(kAmax)) {
    for (const auto& [module, bits] : json.at(kAmax).items())
      repair.amax[module] = parse_bits(place.where, bits);
  }
  return repair;
}

Json write_edit(const Edit& edit) {
  Json json;
  if (edit.kind == Edit::Kind::kRepair) json[kRepair] = write_repair(edit.repair);
  for (const EditKey& word : kEditKeys) {
    if (word.kind != edit.kind) continue;
    json[word.command][word.key] =
        edit.kind == Edit::Kind::kDropExperts ? Json(edit.experts) : Json(edit.patterns);
  }
  return json;
}

Edit read_edit(const JsonPlace& place, const Json& json) {
  if (json.contains(kRepair)) {
    check_keys(place.where, place.path, json, std::array{kRepair}, place.unknown);
    return {.kind = Edit::Kind::kRepair, .repair = read_repair(place.below(kRepair), json.at(kRepair))};
  }
  const EditKey* word = std::begin(kEditKeys);
  for (const EditKey& known : kEditKeys) {
    const auto command = json.find(known.command);
    if (command == json.end()) continue;
    word = &known;
    if (command->contains(known.key)) break;
  }
  const JsonPlace below = place.below(word->command);
  const std::string_view command = word->command, key = word->key;
  check_keys(place.where, place.path, json, {&command, 1}, place.unknown);
  check_keys(below.where, below.path, json.at(command), {&key, 1}, below.unknown);
  const Json& value = json.at(command).at(key);
  Edit edit{.kind = word->kind};
  if (edit.kind != Edit::Kind::kDropExperts) {
    edit.patterns = value.get<std::vector<std::string>>();
    return edit;
  }
  for (const auto& [block, numbers] : value.items()) {
    for (const Json& number : numbers) edit.experts[block].push_back(whole_number<int64_t>(number));
  }
  return edit;
}

constexpr JsonKey<Recipe> kRecipeKeys[] = {
    {"rules",
     [](const Recipe& r) {
       Json rules = Json::array();
       for (const Rule& rule : r.rules) rules.push_back(write_keys(rule_settings(), rule));
       return rules;
     },
     [](const JsonPlace& place, const Json& json, Recipe& r) {
       r.rules.clear();
       for (const Json& rule : json) {
         const std::string path = fmt::format("{}[{}]", place.path, r.rules.size());
         read_keys(rule_settings(), JsonPlace{place.where, path, place.unknown}, rule,
                   r.rules.emplace_back());
       }
     },
     true},
    {"max_shard_size", [](const Recipe& r) { return Json(r.max_shard_size); },
     [](const JsonPlace&, const Json& json, Recipe& r) { r.max_shard_size = whole_number<uint64_t>(json); },
     true},
    {"dialect", [](const Recipe& r) { return r.dialect.empty() ? Json() : Json(r.dialect); },
     [](const JsonPlace&, const Json& json, Recipe& r) { r.dialect = json.get<std::string>(); }},
    {"zero_points",
     [](const Recipe& r) {
       const std::string_view word = zero_points_word(r.zero_points);
       return word.empty() ? Json() : Json(word);
     },
     [](const JsonPlace& place, const Json& json, Recipe& r) {
       const auto word = json.get<std::string>();
       try {
         r.zero_points = parse_zero_points(word);
       } catch (const Error& e) {
         throw Error(fmt::format("{}: {}.{}", place.where, place.path, e.what()));
       }
     }},
    {"readme",
     [](const Recipe& r) {
       return r.readme == Readme::kUnstated ? Json() : Json(r.readme == Readme::kWritten);
     },
     [](const JsonPlace&, const Json& json, Recipe& r) {
       r.readme = json.get<bool>() ? Readme::kWritten : Readme::kLeftOut;
     }},
    {"edit", [](const Recipe& r) { return write_edit(r.edit); },
     [](const JsonPlace& place, const Json& json, Recipe& r) { r.edit = read_edit(place, json); }},
    {"recovery", [](const Recipe& r) { return r.recovery ? recovery_to_json(*r.recovery) : Json(); },
     [](const JsonPlace& place, const Json& json, Recipe& r) {
       r.recovery = recovery_from_json(place, json);
     }}};

}  // namespace

Json recipe_to_json(const Recipe& recipe) { return write_keys(kRecipeKeys, recipe); }

Recipe recipe_from_json(std::string_view where, const Json& json, UnknownKeys unknown) {
  try {
    const bool is_one_rule = unknown == UnknownKeys::kIgnore && json.contains("to");
    Json rules = json;
    if (is_one_rule) rules["rules"] = Json::array({json});
    Recipe recipe;
    read_keys(kRecipeKeys, JsonPlace{where, "recipe", unknown}, rules, recipe);
    return recipe;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a recipe, found {}", where, json_line(json).substr(0, 80)));
  }
}

}  // namespace twofour
