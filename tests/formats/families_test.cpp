#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "formats/error.h"
#include "formats/families/family_rows.h"
#include "formats/families/rows.h"
#include "formats/families/sizes.h"

namespace families_test {

using namespace twofour;
using namespace twofour::families;

namespace fs = std::filesystem;

namespace {

/// A family that nobody has published, all of it in one row: layers of a window have more heads.
std::string_view made_up_mixer(const FamilySizes& sizes, int64_t layer) {
  return sizes.number("windows", layer).value_or(0) != 0 ? "sliding_attention" : "full_attention";
}
constexpr FamilyBlock kMadeUp{R"(
  if @full_attention
  .self_attn.q_proj  linear [num_attention_heads*head_dim, hidden_size]  bias=attention_bias
  .self_attn.query   linear [num_attention_heads*head_dim, hidden_size]  alias
  if
  .self_attn.q_proj  linear [window.heads*head_dim, hidden_size]  @sliding_attention
  .self_attn.sinks   vector [num_attention_heads]  sinks=2
  .table.norm        norm [hidden_size/2]  table_layers:1
)"};
constexpr FamilyShapes kFamily{
    .model_types = {"made_up"},
    .parameters = {kFrame, kMadeUp},
    .defaults = "hidden_size=width width=64 head_dim=8 attention_bias=false",
    .mixer = {made_up_mixer},
    .router = grouped_sigmoid(2),
    .traits = {{.window = 8}},
};

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a size is a key of the config, of an object in it, of the config around it or the family's own") {
  const Json config = parse_json("config", R"({"num_attention_heads": 4, "window": {"heads": 6},
      "windows": [0, 1], "sinks": 2, "table_layers": [2]})");
  const Json whole = parse_json("whole", R"({"vision_config": {"depth": 3}, "projector": 5, "windows": 7})");
  const FamilySizes sizes(kFamily, config, &whole);
  CHECK(sizes.size("num_attention_heads*head_dim") == 32);
  CHECK(sizes.size("window.heads*head_dim") == 48);
  CHECK(sizes.size("hidden_size/2+1") == 33);
  CHECK(sizes.size("projector*vision_config.depth") == 15);
  CHECK(sizes.size("windows", 1) == 1);
  CHECK(!sizes.size("hidden_size/3"));
  CHECK(!sizes.size("window.width"));
  CHECK(!sizes.size("vision_config.width"));
  CHECK(!FamilySizes(kFamily, config).size("projector"));
  CHECK(sizes.keys("hidden_size*window.heads") == std::vector<std::string>{"width", "window.heads"});
}

TEST_CASE("a condition is a switch, a text, a number, a place in a list or a class of layers") {
  const Json config = parse_json("config", R"({"windows": [0, 1, 0], "sinks": 2, "act": "silu",
      "table_layers": [2]})");
  const FamilySizes sizes(kFamily, config);
  CHECK(sizes.holds("sinks"));
  CHECK(sizes.holds("sinks=2"));
  CHECK(!sizes.holds("sinks=3"));
  CHECK(!sizes.holds("none=0"));
  CHECK(sizes.holds("act=silu !act=relu !none"));
  CHECK(sizes.holds("table_layers:1", 1));
  CHECK(!sizes.holds("table_layers:1", 2));
  CHECK(!sizes.holds("table_layers:1"));
  CHECK(sizes.holds("@sliding_attention may alias", 1));
  CHECK(!sizes.holds("@sliding_attention", 2));
}

TEST_CASE("one name has as many rows as there are conditions under which it has a size of its own") {
  const std::vector<FamilyRow> rows = family_rows(kFamily.parameters);
  const FamilyNames names(rows);
  FoldedName name;
  name.fold("model.layers.7.self_attn.q_proj.weight");
  const auto found = names.find(name.text);
  REQUIRE(found.size() == 2);
  CHECK(rows[found[0]].n == "num_attention_heads*head_dim");
  CHECK(rows[found[1]].n == "window.heads*head_dim");
  CHECK(names.find("model.layers.#.self_attn.q_proj.bias").size() == 1);
  CHECK(names.find("model.layers.#.self_attn.k_proj.weight").empty());
  const auto alias = names.find("model.layers.#.self_attn.query.weight");
  REQUIRE(alias.size() == 1);
  CHECK(rows[alias[0]].is_alias);
  CHECK(rows[alias[0]].when == "@full_attention");
  CHECK(family_switches(rows) == std::vector<std::string>{"attention_bias"});
}

TEST_CASE("a line of a family's parameters is read word by word") {
  const FamilyBlock block{R"(
  . = blocks.#
  Width = 2*hidden_size
  // A remark.
  if $1
  .mlp.{gate,up,~down}_proj  linear [Width, hidden_size]  may bias=$2
  norm                       norm [?]  alias bias
)",
                          {"@dense", "mlp_bias"}};
  std::vector<std::string> texts;
  for (const FamilyRow& row : family_rows({&block, 1})) {
    texts.push_back(row.name + ' ' + row.n + ' ' + row.k + ' ' + row.when);
    CHECK(row.is_alias == row.name.starts_with("norm"));
    CHECK(row.has_layer == row.name.starts_with("blocks.#."));
  }
  CHECK(texts ==
        std::vector<std::string>{"blocks.#.mlp.gate_proj.weight 2*hidden_size hidden_size @dense may",
                                 "blocks.#.mlp.gate_proj.bias 2*hidden_size  @dense may mlp_bias",
                                 "blocks.#.mlp.up_proj.weight 2*hidden_size hidden_size @dense may",
                                 "blocks.#.mlp.up_proj.bias 2*hidden_size  @dense may mlp_bias",
                                 "blocks.#.mlp.down_proj.weight hidden_size 2*hidden_size @dense may",
                                 "blocks.#.mlp.down_proj.bias hidden_size  @dense may mlp_bias",
                                 "norm.weight ?  @dense", "norm.bias ?  @dense"});
}

TEST_CASE("a line of a family's parameters that means nothing is refused") {
  for (const char* text : {"norm", "norm linear", "norm norms [hidden_size]", "norm norm hidden_size",
                           "norm norm [hidden_size", "norm norm [hidden_size, 1]", "q linear [hidden_size]",
                           "q linear [1, 2, 3]", "q linear [1,2]", "q any [1]", "{q,k linear [1, 2]",
                           "norm norm [] may", "norm norm [A*b]", "norm norm [a-b]", "$4 any"}) {
    CAPTURE(text);
    const FamilyBlock block{text};
    CHECK_THROWS_AS(family_rows({&block, 1}), Error);
  }
}

TEST_CASE("every line of every family can be read") {
  for (const FamilyShapes& family : family_shapes()) {
    CAPTURE(family.model_types[0]);
    CHECK_NOTHROW(family_rows(family.parameters));
    for (const FamilyPart& part : family.parts) CHECK_NOTHROW(family_rows({&part.parameters, 1}));
    const Json defaults = family_defaults(family);
    for (const auto& [key, value] : defaults.items()) CHECK((!key.empty() && value != ""));
  }
}

TEST_CASE(
    "a family is in one row: a model_type is named by its row, where files name experts, and by synth") {
  // Dialects and methods with the name of a family, a table of image processors, and the entry of gpt-oss.
  const std::set<std::string> kOthers = {
      "lib/source/dialects/deepseek.cpp",        "lib/source/dialects/loader_lookup.cpp",
      "lib/source/dialects/output_dialect.cpp",  "lib/write/encode/quantize_select.cpp",
      "lib/base/names/quantization_methods.cpp", "lib/lint/config/vision_settings.cpp",
      "lib/repair/mend_quantization.cpp"};
  std::map<std::string, std::set<std::string>> files;  // of each model_type
  std::set<std::string> types;
  for (const FamilyShapes& family : family_shapes()) {
    for (const char* type : family.model_types) {
      if (type != nullptr) CHECK(types.emplace(type).second);
    }
    if (family.outer_type != nullptr) CHECK(types.emplace(family.outer_type).second);
  }
  for (const char* area : {"formats", "kernels", "lib", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TWOFOUR_SOURCE_DIR) / area)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
      const std::string file = fs::relative(entry.path(), TWOFOUR_SOURCE_DIR).generic_string();
      const std::string text = text_of(entry.path());
      for (const std::string& type : types) {
        if (text.find('"' + type + '"') != text.npos && !kOthers.contains(file)) files[type].insert(file);
      }
    }
  }
  for (const auto& [type, named] : files) {
    CAPTURE(type);
    size_t rows = 0;
    for (const std::string& file : named) {
      CAPTURE(file);
      rows += file.starts_with("formats/families/") ? 1 : 0;
      CHECK((file.starts_with("formats/families/") || file == "formats/naming.cpp" ||
             file.starts_with("lib/synth/shapes_")));
    }
    CHECK(rows == 1);
  }
}

TEST_CASE("what reads rows finds what a family has in them") {
  CHECK(find_family_router("qwen3_moe")->renormalized == Renormalized::kIfConfigured);
  CHECK(find_family_router("qwen3_5_moe") == find_family_router("qwen3_5_moe_text"));
  CHECK(find_family_router("llama") == nullptr);
  CHECK(find_family_traits("kimi_k2") == find_family_traits("deepseek_v3"));
  CHECK(find_family_traits("deepseek_v32") == nullptr);
  CHECK(find_family_shapes("kimi_linear") != nullptr);
  // A model that also reads images has its sizes in another config.
  CHECK(find_family_shapes("qwen3_5_moe") == nullptr);
  CHECK(find_family_shapes("openai_privacy_filter") == nullptr);
  CHECK(decoder_families() ==
        "llama, mistral, qwen2, qwen3, gemma3_text, qwen2_moe, qwen3_moe, mixtral, minimax_m2, olmoe, "
        "deepseek_v2, "
        "deepseek_v3, "
        "kimi_k2, glm4_moe, deepseek_v4, nemotron_h, qwen3_next, qwen3_5_moe_text, qwen3_5_text, gpt_oss");
  CHECK(find_family_shapes("kimi_k2")->class_names[1] == std::string("deepseek_v3"));
  CHECK(find_family_shapes("olmo3")->activations == FamilyActivations::kSilu);
  CHECK(find_family_shapes("cohere")->activations == FamilyActivations::kAny);
  // The default of qwen3_vl_text, which the decoder does not run, is for many positions.
  CHECK(find_family_traits("qwen3")->states_theta);
  CHECK(find_family_traits("qwen3_vl_text") == nullptr);
  CHECK(clamps_gates("gpt_oss"));
  CHECK(!clamps_gates("llama"));
}

}  // namespace families_test
