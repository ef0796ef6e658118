#include <doctest/doctest.h>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/lint/files/jinja.h"
#include "lib/lint/rules/levels.h"
#include "lib/source/hub/sha.h"
#include "tests/support/faults/lint_changed.h"
#include "tests/support/lint_words.h"
#include "tests/support/message.h"

// One cause for what is wrong with all names, layers or modules; files beside weights; what a profile says.

namespace lint_names_test {

using namespace twofour;
using namespace spoil;

namespace {

namespace fs = std::filesystem;

/// Findings above a note that are no consequences.
std::vector<LintFinding> causes_of(Base base, const Change& change) {
  std::vector<LintFinding> causes;
  for (const LintFinding& f : lint_changed(base, change).findings)
    if (f.severity != Severity::kNote) causes.push_back(f);
  return causes;
}

/// Checks that one finding is the cause of all others, and what it says.
void check_one(const char* what, Base base, const Change& change, const std::string& rule,
               const std::string& words) {
  CAPTURE(std::string(what));
  const std::vector<LintFinding> causes = causes_of(base, change);
  CAPTURE(lint_words::text_of(causes));
  REQUIRE(causes.size() == 1);
  CHECK(lint_rules()[causes[0].rule].id == rule);
  const std::string text = causes[0].where() + " " + causes[0].message;
  CHECK_MESSAGE(text.find(words) != std::string::npos, text);
}

Change rename_all(std::function<std::string(std::string)> f) {
  return [f = std::move(f)](Save& s, std::mt19937&) {
    for (auto& [file, tensors] : s.shards)
      for (TensorData& t : tensors) t.name = f(t.name);
  };
}
Change prefixed(std::string prefix) {
  return rename_all([=](const std::string& name) { return prefix + name; });
}

}  // namespace

TEST_CASE("a prefix of all names is one finding") {
  for (const char* prefix : {"model.", "module.", "_orig_mod.", "base_model.model."}) {
    check_one(prefix, Base::kLlama, prefixed(prefix), "name-prefix", "expected ");
    check_one(prefix, Base::kMoe, prefixed(prefix), "name-prefix", "expected ");
  }
  check_one("FSDP", Base::kLlama, rename_all([](std::string name) {
              for (const std::string block : {".self_attn.", ".mlp."}) {
                const size_t at = name.find(block);
                if (at != std::string::npos) name.insert(at, "._fsdp_wrapped_module");
              }
              return name;
            }),
            "name-prefix", "_fsdp_wrapped_module");
}

TEST_CASE("numbers of layers that begin at 1 are one finding") {
  const Change shift = rename_all([](std::string name) {
    const size_t at = name.find("layers.");
    if (at == std::string::npos) return name;
    const size_t begin = at + 7, end = name.find('.', begin);
    return name.replace(begin, end - begin, std::to_string(std::stoi(name.substr(begin, end - begin)) + 1));
  });
  check_one("dense", Base::kLlama, shift, "layer-numbers", "numbers begin at 1");
  check_one("with a draft", Base::kDeepSeek, shift, "layer-numbers", "numbers begin at 1");
}

TEST_CASE("a lost config, group or width of integers is one finding") {
  check_one("of the language model", Base::kQwenMixed, erase_key("text_config"), "odd-setting",
            "text_config");
  check_one("a group", Base::kQwenRow, erase_key("quantization_config.config_groups.group_1"),
            "no-quantization-config", "expected a group for");
  check_one("all of FP8", Base::kDeepSeek, erase_key("quantization_config"), "no-quantization-config", "FP8");
  check_one("the tower", Base::kQwenRow, drop("model.visual.*"), "tensor-missing", "model.visual");
  check_one("a pattern that is too short", Base::kNemotron,
            edit_key("hybrid_override_pattern",
                     [](Json& j) { j = j.get<std::string>().substr(0, j.get<std::string>().size() - 1); }),
            "impossible-setting", "hybrid_override_pattern");
}

TEST_CASE("where two keys are only multiplied, both are named") {
  const auto causes =
      causes_of(Base::kNemotron, edit_key("ssm_state_size", [](Json& j) { j = 2 * j.get<int64_t>(); }));
  REQUIRE(!causes.empty());
  CHECK(causes[0].message.find("ssm_state_size of") != std::string::npos);
}

TEST_CASE("a tower of no known family is held against its config, and layers against their siblings") {
  const Change unknown =
      all_of({set_key("model_type", "anthill_vl"), set_key("text_config.model_type", "anthill"),
              set_key("architectures", Json::array({"AnthillForConditionalGeneration"}))});
  const auto rules = [&](const Change& change) {
    return rules_of_change(Base::kQwenMixed, all_of({unknown, change}));
  };
  CHECK(rules([](Save&, auto&) {}) == std::set<std::string>{});
  const auto vision = [&](const char* key, int value) {
    return rules(set_key(std::string("vision_config.") + key, value));
  };
  CHECK(vision("depth", 27) == std::set<std::string>{"layers-missing"});
  for (const char* key : {"hidden_size", "intermediate_size", "patch_size"})
    CHECK(vision(key, 96).contains("config-shape"));
  CHECK(rules(cut_columns("model.visual.blocks.0.mlp.linear_fc2.weight", 32)).contains("config-shape"));
  CHECK(rules(drop("model.language_model.layers.5.linear_attn.A_log")) ==
        std::set<std::string>{"tensor-missing"});
  CHECK(rules(drop("model.language_model.layers.5.mlp.experts.*")).contains("experts-missing"));
}

TEST_CASE("a fused linear is named where its parts are missing") {
  const auto causes = causes_of(Base::kMoe, spoil::rename("model.layers.0.self_attn.q_proj.weight",
                                                          "model.layers.0.self_attn.qkv_proj.weight"));
  REQUIRE(!causes.empty());
  bool named = false;
  for (const LintFinding& f : causes)
    named = named || f.message.find("model.layers.0.self_attn.qkv_proj") != std::string::npos;
  CHECK(named);
}

TEST_CASE("scales that are far apart are not to be folded") {
  for (const bool far : {false, true}) {
    const float factor = far ? 15000.0F : 1.5F;
    const auto causes = causes_of(Base::kLlama, map_floats("model.layers.0.mlp.up_proj.weight_scale_2",
                                                           [=](float x) { return x * factor; }));
    std::string text;
    for (const LintFinding& f : causes)
      if (lint_rules()[f.rule].id == std::string("unequal-global-scales")) text = f.message;
    for (const LintFinding& f : causes)
      for (const LintFinding& c : f.consequences)
        if (lint_rules()[c.rule].id == std::string("unequal-global-scales")) text = c.message;
    REQUIRE(text != "");
    CHECK((text.find("too far apart") != std::string::npos) == far);
  }
}

TEST_CASE("a blob of a Hub's cache has the hash that it is named by") {
  for (const bool sound : {true, false}) {
    const Scratch scratch;
    const fs::path snapshot = scratch / "snapshots" / "main";
    fs::create_directories(scratch / "blobs");
    Save save = base_checkpoint(Base::kTiny);
    write_planted(save, snapshot);
    for (const fs::directory_entry& entry : fs::directory_iterator(snapshot)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string bytes = read_text(entry.path());
      Sha256 sha;
      sha.update({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
      std::string name = sha.hex();
      if (!sound) name[0] = name[0] == '0' ? '1' : '0';
      fs::rename(entry.path(), scratch / "blobs" / name);
      fs::create_symlink(fs::path("../../blobs") / name, entry.path());
    }
    Progress progress;
    const LintReport report = lint(snapshot, {}, progress);
    CHECK(rules_of(report) == (sound ? std::set<std::string>{} : std::set<std::string>{"blob-hash"}));
    CHECK(message_of([&] { lint(fs::path(scratch / "."), {}, progress); }).find("snapshots/main") !=
          std::string::npos);
  }
}

TEST_CASE("templates parse as Jinja parses them") {
  for (const char* sound : {"a", "{{ a }}", "{%- if a -%} b {%+ else %} c {% endif +%}",
                            "{% set x = {'a': [1, 2]} %}{{ x['a'][-1:] }}", "{{ 'a' 'b' ~ \"}}\" }}",
                            "{{ a if b is divisibleby 3 else c }}", "{# {% if %} #}x",
                            "{% for i in range(3) recursive %}{{ i }}{% else %}n{% endfor %}",
                            "{% raw %}{{ {% {% endraw %}", "{{ f(a=1, *b, **c) | d(2) | e }}",
                            "{% set x %}y{% endset %}{{ x.if }}", "{{ not a.b and -1 < 2 ** 3 }}"}) {
    CAPTURE(std::string(sound));
    CHECK(read_template(sound).problem == "");
  }
  for (const char* broken :
       {"{{ a b }}", "{{ a", "{% if a %}", "{% endif %}", "{{ 1 + }}", "{{ }}", "{% %}", "{{ a) }}",
        "{{ [1, 2 }}", "{% else %}", "{% for a %}{% endfor %}", "{{ 'a }}", "{# a", "{{ a ? }}",
        "{% endraw %}", "{% do a %}", "{% set %}", "{% if a %}{% elif %}{% endif %}"}) {
    CAPTURE(std::string(broken));
    CHECK(read_template(broken).problem != "");
  }
  CHECK(read_template("{% set a = 1 %}\n").is_empty);
  CHECK(!read_template("{{ a }}").is_empty);
  const auto tokens =
      read_template("<|a|>{{ '<|b|>' + x.split('<|c|>')[0] }}{% if '<|d|>' in y %}{% endif %}").tokens;
  CHECK(tokens == std::set<std::string>{"<|a|>", "<|b|>"});
}

TEST_CASE("serving asks for less than publishing") {
  const auto level = [](const char* rule) {
    LintChoice choice;
    choice.profile = "serve";
    const LintLevels levels = levels_of(choice);
    const auto at = levels.find(rule);
    return at == levels.end() ? lint_rules()[*find_lint_rule(rule)].severity : *at->second;
  };
  // One engine of several serves it, or all do.
  CHECK(level("engine-limit") == Severity::kNote);
  CHECK(level("quantized-head") == Severity::kNote);
  CHECK(level("engine-lookup") == Severity::kError);
  CHECK(level("missing-token") == Severity::kError);
  CHECK(level("name-prefix") == Severity::kError);
}

}  // namespace lint_names_test
