#include "lib/recipe/artifact/recipe_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "lib/recipe/artifact/yaml.h"
#include "lib/source/dialects/output_dialect.h"
#include "tests/support/message.h"

namespace recipe_file_test {

using namespace twofour;

namespace {

/// A recipe of one rule, whose keys are given.
std::string with_rule(const std::string& keys) { return "format: 1\nrules:\n  - " + keys + "\n"; }

Rule rule_of(const std::string& keys) { return read_recipe("r", with_rule(keys)).rules.at(0); }

std::string refusal(const std::string& text) {
  return message_of([&] { read_recipe("r.yaml", text); });
}

/// The message about a rule's keys, in one line of braces.
std::string rule_refusal(const std::string& keys) { return refusal(with_rule("{" + keys + "}")); }

std::vector<std::string> texts(const std::vector<NamePattern>& patterns) {
  std::vector<std::string> all;
  for (const NamePattern& p : patterns) all.push_back(p.text());
  return all;
}

}  // namespace

TEST_CASE("every shipped recipe is read, and its first line says what it is for") {
  std::set<std::string_view> names;
  for (const ShippedRecipe& r : shipped_recipes()) {
    CAPTURE(r.name);
    CHECK(names.insert(r.name).second);
    CHECK(r.name.find_first_of("/.") == r.name.npos);
    CHECK(!read_recipe(std::string(r.name), r.text).rules.empty());
    CHECK(r.text.starts_with("# "));
    CHECK(r.summary().size() > 20);
    CHECK(r.summary().size() < 100);
    CHECK(find_shipped_recipe(r.name) == &r);
  }
  for (const char* name : {"nvfp4-experts", "nvfp4-all", "bf16", "v7-experts", "g8-experts", "mxfp4-to-fp8",
                           "fp8-attention-nvfp4-experts", "w4a4-experts", "deepseek-v4-nvfp4"}) {
    CHECK_MESSAGE(names.contains(name), name);
  }
  CHECK(find_shipped_recipe("nvfp4") == nullptr);
  const Recipe fp8 = read_recipe("r", find_shipped_recipe("mxfp4-to-fp8")->text);
  CHECK(fp8.rules[0].to == "fp8");
  CHECK(fp8.rules[0].block == "128x128");
  CHECK(fp8.rules[0].scale_dtype == "f32");
}

TEST_CASE(
    "a role chooses by itself, a name adds to nothing, a glob or expression restricts the default set") {
  const Selection role = rule_of("{match: experts, to: v7}").selection;
  CHECK(role.roles == std::vector{ModuleRole::kRoutedExperts});
  CHECK(!role.from_default);
  const Selection name = rule_of("{match: model.layers.0.mlp.down_proj, to: v7}").selection;
  CHECK(texts(name.also) == std::vector<std::string>{"model.layers.0.mlp.down_proj"});
  CHECK(!name.from_default);
  for (const std::string pattern : {"*", "*.mlp.*", "layers.[01].x", "layers.?.x", "re:.*mlp"}) {
    const Selection s = rule_of(fmt::format("{{match: '{}', to: v7}}", pattern)).selection;
    CHECK(texts(s.include) == std::vector{pattern});
    CHECK(s.from_default);
    CHECK(s.roles.empty());
    CHECK(s.also.empty());
  }
  const Selection all = rule_of("{match: [head, '*.a', b, mtp], to: keep}").selection;
  CHECK(all.roles == std::vector{ModuleRole::kHead, ModuleRole::kMtp});
  CHECK(texts(all.include) == std::vector<std::string>{"*.a"});
  CHECK(texts(all.also) == std::vector<std::string>{"b"});
  CHECK(all.from_default);
  CHECK(all.exclude.empty());
  for (const std::string_view r : role_names())
    CHECK(rule_of(fmt::format("{{match: {}, to: keep}}", r)).selection.roles.size() == 1);
}

TEST_CASE("every word of a rule reaches it") {
  const Rule fp8 = rule_of("{match: mlp, to: fp8, block: 1x128, scale_dtype: e8m0, exact: strict}");
  CHECK(fp8.to == "fp8");
  CHECK(fp8.granularity == "block");
  CHECK(fp8.block == "1x128");
  CHECK(fp8.scale_dtype == "e8m0");
  CHECK(fp8.exact == "strict");
  const Rule nvfp4 = rule_of(
      "{match: mlp, to: nvfp4, arithmetic: modelopt, block_scale: four-over-six, zero_block: zero, "
      "pattern: '2:4', method: magnitude, input_scale: constant, one_input_scale_a_layer: true}");
  CHECK(nvfp4.to == "quantize");
  CHECK(nvfp4.arithmetic == "modelopt");
  CHECK(nvfp4.block_scale == "four-over-six");
  CHECK(nvfp4.zero_block == "zero");
  CHECK(nvfp4.pattern == "2:4");
  CHECK(nvfp4.input_scale == "constant=1.0");
  CHECK(nvfp4.one_input_scale_a_layer);
  const Rule prune = rule_of("{match: '*', to: keep, pattern: '4:8-paired'}");
  CHECK(prune.to == "prune");
  CHECK(prune.pattern == "4:8-paired");
  const Rule keep = rule_of("{match: '*', to: keep, input_scale: neighbours}");
  CHECK(keep.to == "keep");
  CHECK(keep.input_scale == "neighbours");
  CHECK(rule_of("{match: mlp, to: fp8, odd_blocks: keep}").odd_blocks == "keep");
  CHECK(rule_of("{match: mlp, to: mxfp4, arithmetic: compressed-tensors}").arithmetic ==
        "compressed-tensors");
  CHECK(rule_of("{match: mlp, to: nvfp4, exact: 'off'}").exact == "off");
  CHECK(rule_of("{match: mlp, to: g8, fold: any}").fold == Fold::kAny);
  CHECK(rule_of("{match: mlp, to: g8, fold: strict}").fold == Fold::kStrict);
  CHECK(rule_of("{match: mlp, to: keep, input_scale: constant=0.25}").input_scale == "constant=0.25");
  CHECK(rule_of("{match: mlp, to: fp8, exact: best}").exact.empty());
  for (const std::string to : {"bf16", "fp8", "mxfp8", "mxfp4", "nvfp4", "v7", "g8"}) {
    const Rule keeps = rule_of(fmt::format("{{match: experts, to: {}, draft_experts: keep}}", to));
    const Rule casts = rule_of(fmt::format("{{match: experts, to: {}, draft_experts: cast}}", to));
    CHECK(keeps.selection.draft_experts == DraftExperts::kKeep);
    CHECK(casts.selection.draft_experts == DraftExperts::kCast);
    // A resumed run reads what was written.
    for (const Rule& rule : {keeps, casts}) {
      const Recipe read = recipe_from_json("r", recipe_to_json(Recipe(rule)));
      CHECK(read.rules[0].selection.draft_experts == rule.selection.draft_experts);
    }
  }
  CHECK(contains(rule_refusal("match: experts, to: nvfp4, draft_experts: yes"), "expected keep or cast"));
  CHECK(contains(rule_refusal("match: experts, to: keep, draft_experts: keep"), "found it with to: keep"));
  for (const std::string to : {"keep", "bf16", "fp8", "mxfp8", "mxfp4", "v7", "v7-packed", "g8"})
    CHECK(rule_of(fmt::format("{{match: mlp, to: {}}}", to)).to == to);
}

TEST_CASE("what a rule does not say stays as a rule is without it") {
  Rule rule = rule_of("{match: '*', to: v7}");
  CHECK(rule.label == "rule 1 (*)");
  CHECK(recipe_to_json(Recipe(rule)) == recipe_to_json([] {
          Rule plain;
          plain.selection.include = parse_patterns({"*"});
          return Recipe(plain);
        }()));
}

TEST_CASE("dialect and size hold for the whole output, rules keep their order and are labelled") {
  const Recipe r = read_recipe("r",
                               "format: 1\ndialect: modelopt\nmax_shard_size: 1.5GB\nrules:\n"
                               "- {match: [mlp, a, '*.b'], to: bf16}\n- {match: experts, to: keep}\n");
  REQUIRE(r.rules.size() == 2);
  CHECK(r.rules[0].to == "bf16");
  CHECK(r.rules[0].label == "rule 1 (mlp and 2 more)");
  CHECK(r.rules[1].label == "rule 2 (experts)");
  CHECK(r.dialect == "modelopt");
  for (const Rule& rule : r.rules) CHECK(rule.dialect.empty());
  CHECK(r.max_shard_size == 1'500'000'000);
  CHECK(read_recipe("r", "format: 1\nmax_shard_size: 1234\nrules: [{match: a, to: v7}]").max_shard_size ==
        1234);
  CHECK(read_recipe("r", with_rule("{match: a, to: v7}")).max_shard_size == Recipe().max_shard_size);
  for (const std::string& dialect : output_dialect_names(false)) {
    const std::string text = fmt::format("dialect: {}\n{}", dialect, with_rule("{match: a, to: keep}"));
    CHECK(read_recipe("r", text).dialect == dialect);
  }
  CHECK(read_recipe("r", with_rule("{match: a, to: keep}")).dialect == "source");
}

TEST_CASE("JSON, a byte order mark and CRLF are read as the same recipe") {
  const std::string yaml = "format: 1\nrules:\n- match: experts\n  to: g8\n";
  const Json expected = recipe_to_json(read_recipe("r", yaml));
  CHECK(recipe_to_json(read_recipe("r", "\xEF\xBB\xBF" + yaml)) == expected);
  std::string crlf;
  for (const char c : yaml) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  CHECK(recipe_to_json(read_recipe("r", crlf)) == expected);
  CHECK(recipe_to_json(read_recipe("r", "\xEF\xBB\xBF" + crlf)) == expected);
  CHECK(recipe_to_json(read_recipe("r", R"({"format":1,"rules":[{"match":["experts"],"to":"g8"}]})")) ==
        expected);
  CHECK(recipe_to_json(read_recipe("r",
                                   "{\n\t\"format\": 1,\n\t\"rules\": [{\"match\": \"experts\", "
                                   "\"to\": \"g8\"}]\n}\n")) == expected);
}

TEST_CASE("errors in a recipe name line, column and key") {
  const std::string head = "format: 1\nrules:\n- {match: a, to: keep}\n- match: experts\n  to: fp8\n";
  CHECK(refusal(head + "  granularity: rows\n") ==
        R"(r.yaml:6:16: rules[1].granularity: expected tensor, row or block, found "rows")");
  CHECK(refusal(head + "  granularity: [row]\n") ==
        "r.yaml:6:16: rules[1].granularity: expected tensor, row or block, found a list");
  CHECK(refusal(head + "  granularity:\n") ==
        "r.yaml:6:3: rules[1].granularity: expected tensor, row or block, found nothing");
  CHECK(refusal(head + "  granularity: {a: b}\n") ==
        "r.yaml:6:16: rules[1].granularity: expected tensor, row or block, found keys and values");
  CHECK(refusal(head + "  granularty: row\n")
            .starts_with("r.yaml:6:3: rules[1]: expected one of the keys match, to, granularity, "));
  CHECK(refusal(head + "  to: bf16\n") == R"(r.yaml:6:3: expected each key once, found "to" again)");
  CHECK(refusal(head + "  ä: ö\n").starts_with("r.yaml:6:3: rules[1]: expected one of the keys"));
  // Columns count characters.
  CHECK(refusal("format: 1\nrules: [{match: [ä, öü, ä], to: keep}]")
            .starts_with(R"(r.yaml:2:25: rules[0].match[2]: expected each entry once, found "ä" again)"));
  CHECK(refusal("format: 1\r\nrules:\r\n- {match: a, to: v8}\r\n") ==
        "r.yaml:3:18: rules[0].to: expected keep, bf16, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or "
        "g8, found "
        "\"v8\"");
  CHECK(refusal("format: 1\ndialect: gguf\nrules: [{match: a, to: keep}]")
            .starts_with("r.yaml:2:10: dialect: expected modelopt, compressed-tensors"));
  CHECK(refusal("format: 1\nrules: [{match: a, to: keep}]\nmax_shard_size: big\n") ==
        "r.yaml:3:17: max_shard_size: expected a size such as 5GB or 500MB, found 'big'");
}

TEST_CASE("a recipe needs its format, rules, and what they match and become") {
  CHECK(refusal("") == "r.yaml:1:1: expected a recipe, found nothing");
  CHECK(refusal("# nothing\n") == "r.yaml:1:1: expected a recipe, found nothing");
  CHECK(refusal("v7") == R"(r.yaml:1:1: expected a recipe, found "v7")");
  CHECK(refusal("- a") == "r.yaml:1:1: expected a recipe, found a list");
  CHECK(refusal("rules: []") == "r.yaml:1:1: expected the key format, found none");
  CHECK(refusal("format: 1") == "r.yaml:1:1: expected the key rules, found none");
  CHECK(refusal("format: 2\nrules: []") ==
        R"(r.yaml:1:9: format: expected 1, the only format of recipes, found "2")");
  CHECK(contains(refusal("format: '1'\nrules: []"), "format: expected 1, the only format"));
  CHECK(contains(refusal("format: 1.0\nrules: []"), "format: expected 1, the only format"));
  CHECK(refusal("format: 1\nrules: []") == "r.yaml:2:8: rules: expected a list of rules, found a list");
  CHECK(refusal("format: 1\nrules: v7") == R"(r.yaml:2:8: rules: expected a list of rules, found "v7")");
  CHECK(refusal("format: 1\nrules: [v7]") == R"(r.yaml:2:9: rules[0]: expected a rule, found "v7")");
  CHECK(rule_refusal("match: a") == "r.yaml:3:5: rules[0]: expected the key to, found none");
  CHECK(rule_refusal("to: v7") == "r.yaml:3:5: rules[0]: expected the key match, found none");
  CHECK(contains(rule_refusal("match: [], to: v7"), "rules[0].match: expected a role, name or pattern"));
  CHECK(contains(rule_refusal("match: '', to: v7"), "rules[0].match: expected a role, a module's name"));
  CHECK(contains(rule_refusal("match: [a, [b]], to: v7"), "rules[0].match[1]: expected a role"));
  CHECK(contains(rule_refusal("match: 're:(', to: v7"), "rules[0].match: pattern 're:('"));
  std::string many = "format: 1\nrules:\n";
  for (size_t i = 0; i <= kMostRules; ++i) many += "- {match: a, to: keep}\n";
  CHECK(contains(refusal(many), "rules: expected at most 1000 rules, found 1001"));
}

TEST_CASE("words that do not go together are refused") {
  for (const std::string keys :
       {"to: bf16, granularity: row", "to: nvfp4, block: 32x32", "to: v7, scale_dtype: f32",
        "to: fp8, arithmetic: modelopt", "to: bf16, block_scale: mse", "to: keep, zero_block: zero",
        "to: v7, pattern: '2:4'", "to: bf16, exact: strict", "to: nvfp4, fold: any",
        "to: fp8, input_scale: none", "to: g8, one_input_scale_a_layer: true"}) {
    const std::string message = rule_refusal("match: a, " + keys);
    CHECK_MESSAGE(message.find(": expected it only with to: ") != message.npos, message);
  }
  CHECK(contains(rule_refusal("match: a, to: bf16, granularity: row"),
                 "rules[0].granularity: expected it only with to: fp8, found it with to: bf16"));
  CHECK(contains(rule_refusal("match: a, to: fp8, granularity: row, block: 128x128"),
                 "rules[0].block: expected it only with granularity: block, found it with row"));
  for (const char* scale : {"input_scale: none", "one_input_scale_a_layer: true"}) {
    CHECK(contains(rule_refusal(fmt::format("match: a, to: keep, pattern: '2:4', {}", scale)),
                   "expected it without pattern if to: keep is set, found both"));
  }
  CHECK(contains(rule_refusal("match: a, to: keep, method: magnitude"),
                 "method: expected it only with pattern"));
  CHECK(contains(rule_refusal("match: a, to: keep, pattern: '2:4', method: gptq"),
                 R"(method: expected joint, wanda or magnitude with pattern, found "gptq")"));
  CHECK(contains(rule_refusal("match: a, to: nvfp4, method: joint"),
                 R"(method: expected gptq, rtn or magnitude without pattern, found "joint")"));
  CHECK(contains(rule_refusal("match: a, to: keep, pattern: '2:4', method: best"),
                 R"(method: expected joint, gptq, wanda, rtn or magnitude, found "best")"));
  for (const std::string scale : {"constant=0", "constant=-1", "constant=inf", "constant=nan",
                                  "constant=1e39", "constant=1x", "constant=", "some", "constant=1e-60"}) {
    CHECK(contains(rule_refusal("match: a, to: nvfp4, input_scale: " + scale),
                   "rules[0].input_scale: expected "));
  }
  CHECK(contains(rule_refusal("match: a, to: keep, one_input_scale_a_layer: 'true'"),
                 "expected true or false"));
  CHECK(contains(rule_refusal("match: a, to: keep, one_input_scale_a_layer: yes"), "expected true or false"));
}

TEST_CASE("what YAML has beyond plain values is refused with its place") {
  CHECK(refusal("format: 1\nrules:\n- match: *.mlp.*\n  to: keep\n") ==
        "r.yaml:3:10: expected no alias, found one; write a glob that begins with * in quotes");
  CHECK(refusal("format: &a 1\nrules: *a") == "r.yaml:1:9: expected no anchor, found one");
  CHECK(contains(refusal("format: !!int 1"), "r.yaml:1:9: expected no tag, found \"tag:yaml.org,2002:int\""));
  CHECK(refusal("a: 1\n---\nb: 2\n") == "r.yaml:2:1: expected one document, found a second");
  CHECK(contains(refusal("? [a]\n: b"), "r.yaml:1:3: expected a key that is text"));
  CHECK(contains(refusal("format: 1\nrules: ["), "expected YAML, found an error: "));
  CHECK(contains(refusal("a: b: c"), "r.yaml:1:5: expected YAML, found an error: illegal map value"));
  CHECK(contains(refusal("format: 1\nrules: 'a\n"), "expected YAML, found an error: "));
  CHECK(contains(refusal("<<: {format: 1}"), "expected one of the keys format, dialect"));
  CHECK(contains(refusal("a: \"\\0\""), "expected text, found a control character"));
}

TEST_CASE("what is not text in UTF-8, too long or too deep is refused before it is parsed") {
  CHECK(refusal("format: 1\n# \xff\n") == "r.yaml:2:3: expected UTF-8, found other bytes");
  CHECK(refusal("\xff\xfe"
                "f\0o\0") == "r.yaml:1:1: expected UTF-8, found other bytes");
  CHECK(refusal(std::string("a: \0", 4)) == "r.yaml:1:4: expected text, found the control character 0x00");
  CHECK(contains(refusal("a: \x1b[31m"), "found the control character 0x1B"));
  CHECK(refusal(std::string(kLongestYaml + 1, ' ')) ==
        "r.yaml: expected at most 1048576 bytes, found 1048577");
  for (const std::string part : {"[", "{a: ", "- ", "? ", "[{a: ", "[? "}) {
    CAPTURE(part);
    std::string deep;
    while (deep.size() + part.size() < kLongestYaml) deep += part;
    const std::string message = refusal(deep);
    CHECK(!message.empty());
    CHECK(message.size() < 300);
  }
  CHECK(contains(refusal("[[[[[[[[[[[[[[[[[a"), "expected at most 16 nested lists"));
}

TEST_CASE("every truncation of a recipe is a recipe or an error") {
  const std::string text =
      "format: 1\ndialect: modelopt\nrules:\n  - match: [experts, \"*.mlp.*\", 're:a']\n    to: fp8\n"
      "    granularity: block\n  - {match: head, to: keep, input_scale: constant=0.5}\n";
  size_t recipes = 0;
  for (size_t size = 0; size <= text.size(); ++size) {
    const std::string message = refusal(text.substr(0, size));
    recipes += message.empty();
    if (!message.empty()) CHECK_MESSAGE(message.starts_with("r.yaml:"), message);
  }
  CHECK(recipes >= 2);
}

TEST_CASE("the places of a YAML document count lines and characters from 1") {
  const YamlNode root = parse_yaml("y", "\xEF\xBB\xBFä: [ö, \"ü\"]\r\nb:\r\n  - c\r\n");
  REQUIRE(root.keys.size() == 2);
  CHECK(root.items[0].items[1].text == "ü");
  CHECK(root.items[0].items[1].quoted);
  CHECK(!root.items[0].items[0].quoted);
  CHECK(root.items[0].items[1].line == 1);
  CHECK(root.items[0].items[1].column == 8);
  CHECK(root.items[1].items[0].line == 3);
  CHECK(root.items[1].items[0].column == 5);
}

}  // namespace recipe_file_test
