#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/artifact/recipe.h"
#include "lib/findings/version.h"

namespace twofour {
namespace {

/// Where a value is in a file, for messages.
struct RecipePlace {
  std::string_view where;
  std::string path;  ///< "recipe.rules[0]"
  UnknownKeys unknown;
  RecipePlace below(std::string_view key) const { return {where, fmt::format("{}.{}", path, key), unknown}; }
};

/// A key of a T: one row writes it, reads it and makes it known.
template <class T>
struct Word {
  const char* key;
  Json (*write)(const T&);  ///< null: it is not written, for a T without it is the same
  void (*read)(const RecipePlace&, const Json&, T&);
  bool is_required = false;
};

template <class T, size_t kCount>
Json write_words(const Word<T> (&words)[kCount], const T& value) {
  Json json = Json::object();
  for (const Word<T>& word : words) {
    if (Json written = word.write(value); !written.is_null()) json[word.key] = std::move(written);
  }
  return json;
}

template <class T, size_t kCount>
void read_words(const Word<T> (&words)[kCount], const RecipePlace& place, const Json& json, T& value) {
  std::vector<std::string_view> keys;
  for (const Word<T>& word : words) keys.emplace_back(word.key);
  check_keys(place.where, place.path, json, keys, place.unknown);
  for (const Word<T>& word : words) {
    if (word.is_required || json.contains(word.key))
      word.read(place.below(word.key), json.at(word.key), value);
  }
}

/// Names and float32 bits, and what they mean.
constexpr Word<FixedGlobalScales> kScaleWords[] = {
    {"divides", [](const FixedGlobalScales& s) { return Json(s.divides); },
     [](const RecipePlace&, const Json& json, FixedGlobalScales& s) { s.divides = json.get<bool>(); }, true},
    {"bits",
     [](const FixedGlobalScales& s) {
       Json bits = Json::object();
       for (const auto& [name, value] : s.scales) bits[name] = fmt::format("{:08x}", value);
       return bits;
     },
     [](const RecipePlace& place, const Json& json, FixedGlobalScales& s) {
       for (const auto& [name, value] : json.items()) {
         const auto text = value.get<std::string>();
         uint32_t bits = 0;
         const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
         const auto scale = std::bit_cast<float>(bits);
         if (error != std::errc() || end != text.data() + text.size() || text.size() != 8 ||
             !std::isfinite(scale) || scale <= 0) {
           throw Error(fmt::format("{}: {}: expected the bits of a positive finite global scale, found {}",
                                   place.where, name, json_quote(text)));
         }
         s.scales.push_back({name, bits});
       }
       s.sort();
     },
     true}};

template <auto kField>
constexpr Word<Rule> text_word(const char* key, bool is_required = false) {
  return {key, [](const Rule& r) { return (r.*kField).empty() ? Json() : Json(r.*kField); },
          [](const RecipePlace&, const Json& json, Rule& r) { r.*kField = json.get<std::string>(); },
          is_required};
}

template <auto kField>
constexpr Word<Rule> pattern_word(const char* key) {
  return {key,
          [](const Rule& r) {
            Json texts = Json::array();
            for (const NamePattern& p : r.selection.*kField) texts.push_back(p.text());
            return texts;
          },
          [](const RecipePlace&, const Json& json, Rule& r) {
            r.selection.*kField = parse_patterns(json.get<std::vector<std::string>>());
          },
          true};
}

template <auto kField>
constexpr Word<Rule> scale_word(const char* key) {
  return {
      key,
      [](const Rule& r) { return (r.*kField).scales.empty() ? Json() : write_words(kScaleWords, r.*kField); },
      [](const RecipePlace& place, const Json& json, Rule& r) {
        read_words(kScaleWords, place, json, r.*kField);
      }};
}

/// A word that decides bytes may not be read as another.
[[noreturn]] void refuse_word(const RecipePlace& place, std::string_view expected, const Json& found) {
  throw Error(fmt::format("{}: {}: expected {}, found {}", place.where, place.path, expected,
                          json_line(found).substr(0, 80)));
}

/// In the order in which they are written.
constexpr Word<Rule> kRuleWords[] = {
    text_word<&Rule::to>("to", true),
    pattern_word<&Selection::include>("include"),
    pattern_word<&Selection::exclude>("exclude"),
    pattern_word<&Selection::also>("also"),
    {"fold", [](const Rule& r) { return Json(kFoldWords[static_cast<size_t>(r.fold)]); },
     [](const RecipePlace& place, const Json& json, Rule& r) {
       const auto fold = parse_fold(json.get<std::string>());
       if (!fold) refuse_word(place, "larger, strict or any", json);
       r.fold = *fold;
     },
     true},
    text_word<&Rule::pattern>("pattern"),
    text_word<&Rule::dialect>("dialect"),
    text_word<&Rule::granularity>("granularity"),
    text_word<&Rule::block>("block"),
    text_word<&Rule::scale_dtype>("scale_dtype"),
    text_word<&Rule::odd_blocks>("odd_blocks"),
    text_word<&Rule::exact>("exact"),
    text_word<&Rule::arithmetic>("arithmetic"),
    text_word<&Rule::block_scale>("block_scale"),
    text_word<&Rule::zero_block>("zero_block"),
    text_word<&Rule::method>("method"),
    {"sweeps", [](const Rule& r) { return r.sweeps < 0 ? Json() : Json(r.sweeps); },
     [](const RecipePlace&, const Json& json, Rule& r) { r.sweeps = json.get<int>(); }},
    text_word<&Rule::statistics_hash>("statistics_xxh3_128"),
    text_word<&Rule::statistics_from>("statistics_from"),
    text_word<&Rule::statistics_input>("statistics_input_xxh3_128"),
    text_word<&Rule::mask_hash>("masks_xxh3_128"),
    scale_word<&Rule::kept>("kept_global_scales"),
    text_word<&Rule::input_scale>("input_scale"),
    scale_word<&Rule::input_scales>("input_scales"),
    {"one_input_scale_a_layer", [](const Rule& r) { return r.one_input_scale_a_layer ? Json(true) : Json(); },
     [](const RecipePlace&, const Json& json, Rule& r) { r.one_input_scale_a_layer = json.get<bool>(); }},
    {"from_default", [](const Rule& r) { return r.selection.from_default ? Json() : Json(false); },
     [](const RecipePlace&, const Json& json, Rule& r) { r.selection.from_default = json.get<bool>(); }},
    {"draft_experts",
     [](const Rule& r) {
       const DraftExperts drafts = r.selection.draft_experts;
       return drafts == DraftExperts::kByName ? Json()
                                              : Json(drafts == DraftExperts::kKeep ? "keep" : "cast");
     },
     [](const RecipePlace& place, const Json& json, Rule& r) {
       r.selection.draft_experts = parse_draft_experts(json.get<std::string>());
       if (r.selection.draft_experts == DraftExperts::kByName) refuse_word(place, "keep or cast", json);
     }},
    {"roles",
     [](const Rule& r) {
       Json roles;
       for (const ModuleRole role : r.selection.roles) roles.push_back(role_name(role));
       return roles;
     },
     [](const RecipePlace& place, const Json& json, Rule& r) {
       for (const Json& role : json) {
         const auto known = role_from_name(role.get<std::string>());
         if (!known) refuse_word(place, "a role of modules", role);
         r.selection.roles.push_back(*known);
       }
     }}};

/// An edit is a command of one word.
struct EditWord {
  Edit::Kind kind;
  const char *command, *key;
};
constexpr EditWord kEditWords[] = {{Edit::Kind::kGraft, "graft", "take"},
                                   {Edit::Kind::kDropModules, "drop", "modules"},
                                   {Edit::Kind::kDropExperts, "drop", "experts"}};

Json write_edit(const Edit& edit) {
  Json json;
  for (const EditWord& word : kEditWords) {
    if (word.kind != edit.kind) continue;
    json[word.command][word.key] =
        edit.kind == Edit::Kind::kDropExperts ? Json(edit.experts) : Json(edit.patterns);
  }
  return json;
}

Edit read_edit(const RecipePlace& place, const Json& json) {
  const EditWord* word = std::begin(kEditWords);
  for (const EditWord& known : kEditWords) {
    const auto command = json.find(known.command);
    if (command == json.end()) continue;
    word = &known;
    if (command->contains(known.key)) break;
  }
  const RecipePlace below = place.below(word->command);
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

constexpr Word<Recipe> kRecipeWords[] = {
    {"rules",
     [](const Recipe& r) {
       Json rules = Json::array();
       for (const Rule& rule : r.rules) rules.push_back(write_words(kRuleWords, rule));
       return rules;
     },
     [](const RecipePlace& place, const Json& json, Recipe& r) {
       r.rules.clear();
       for (const Json& rule : json) {
         const std::string path = fmt::format("{}[{}]", place.path, r.rules.size());
         read_words(kRuleWords, {place.where, path, place.unknown}, rule, r.rules.emplace_back());
       }
     },
     true},
    {"max_shard_size", [](const Recipe& r) { return Json(r.max_shard_size); },
     [](const RecipePlace&, const Json& json, Recipe& r) { r.max_shard_size = whole_number<uint64_t>(json); },
     true},
    {"dialect", [](const Recipe& r) { return r.dialect.empty() ? Json() : Json(r.dialect); },
     [](const RecipePlace&, const Json& json, Recipe& r) { r.dialect = json.get<std::string>(); }},
    {"zero_points",
     [](const Recipe& r) {
       const std::string_view word = zero_points_word(r.zero_points);
       return word.empty() ? Json() : Json(word);
     },
     [](const RecipePlace&, const Json& json, Recipe& r) {
       r.zero_points = parse_zero_points(json.get<std::string>());
     }},
    {"edit", [](const Recipe& r) { return write_edit(r.edit); },
     [](const RecipePlace& place, const Json& json, Recipe& r) { r.edit = read_edit(place, json); }}};

}  // namespace

void check_keys(std::string_view where, std::string_view path, const Json& json,
                std::span<const std::string_view> keys, UnknownKeys unknown) {
  if (unknown == UnknownKeys::kIgnore) return;
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    throw Error(
        fmt::format("{}: {}: expected keys that twofour {} knows, found {}: a newer twofour wrote it, and "
                    "only that reads it",
                    where, path, version(), json_quote_short(key)));
  }
}

Json recipe_to_json(const Recipe& recipe) { return write_words(kRecipeWords, recipe); }

Recipe recipe_from_json(std::string_view where, const Json& json, UnknownKeys unknown) {
  try {
    const bool is_one_rule = unknown == UnknownKeys::kIgnore && json.contains("to");
    Json rules = json;
    if (is_one_rule) rules["rules"] = Json::array({json});
    Recipe recipe;
    read_words(kRecipeWords, {where, "recipe", unknown}, rules, recipe);
    return recipe;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a recipe, found {}", where, json_line(json).substr(0, 80)));
  }
}

}  // namespace twofour
