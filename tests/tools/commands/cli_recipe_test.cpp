#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/recipe_file.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_recipe_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A checkpoint of NVFP4 experts and a place beside it.
struct Source {
  Source() { REQUIRE(run_program({"synth", path("src"), "--shape", "tiny", "-q"}).code == 0); }
  std::string path(const char* name) const { return (scratch / name).string(); }
  std::string recipe(const std::string& text) const {
    write_text(scratch / "recipe.yaml", text);
    return path("recipe.yaml");
  }
  Scratch scratch;
};

std::string usage(const std::vector<std::string>& words) {
  const Outcome o = run_program(words);
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  return o.err.substr(0, o.err.find('\n'));
}

}  // namespace

TEST_CASE("twofour recipes lists the recipes and prints each as it is") {
  const Outcome list = run_program({"recipes"});
  CHECK(list.code == 0);
  const Json json = json_of(run_program({"recipes", "--json"}))["recipes"];
  CHECK(json.size() == shipped_recipes().size());
  for (const ShippedRecipe& r : shipped_recipes()) {
    CAPTURE(r.name);
    CHECK(list.out.find(std::string(r.summary()) + "\n") != std::string::npos);
    CHECK(run_program({"recipes", std::string(r.name)}).out == r.text);
    CHECK(json_of(run_program({"recipes", std::string(r.name), "--json"}))["text"] == std::string(r.text));
  }
  CHECK(contains(usage({"recipes", "v7-expert"}), "did you mean v7-experts?"));
}

TEST_CASE("a recipe's examples in help are recipes") {
  const std::string help = run_program({"help", "recipes"}).out;
  size_t examples = 0;
  for (size_t at = help.find("  format: 1\n"); at != help.npos; at = help.find("  format: 1\n", at)) {
    const size_t end = help.find("\n\n", at);
    REQUIRE(end != help.npos);
    CHECK(message_of([&] { read_recipe("help", help.substr(at, end - at)); }) == "");
    at = end;
    ++examples;
  }
  CHECK(examples == 2);
}

TEST_CASE("a recipe of one rule writes what its options write") {
  const Source s;
  for (const std::string to : {"v7", "g8"}) {
    const std::string by_option = s.path(("option-" + to).c_str()), by_name = s.path(("name-" + to).c_str());
    const std::string by_file = s.path(("file-" + to).c_str());
    REQUIRE(run_program({"convert", s.path("src"), by_option, "--to", to, "-q"}).code == 0);
    REQUIRE(run_program({"convert", s.path("src"), by_name, "--recipe", to + "-experts", "-q"}).code == 0);
    const std::string json = fmt::format(R"({{"format":1,"rules":[{{"match":"experts","to":"{}"}}]}})", to);
    REQUIRE(run_program({"convert", s.path("src"), by_file, "--recipe", s.recipe(json), "-q"}).code == 0);
    for (const std::string& other : {by_name, by_file}) {
      CHECK(same_contents(fs::path(by_option) / "model-00001-of-00001.safetensors",
                          fs::path(other) / "model-00001-of-00001.safetensors"));
      CHECK(run_program({"validate", other, "--source", s.path("src"), "-q"}).code == 0);
    }
  }
}

TEST_CASE("--dry-run names the rule that made each decision") {
  const Source s;
  const std::string recipe = s.recipe("format: 1\nrules: [{match: experts, to: v7}]\n");
  const std::vector<std::string> words = {"convert",  s.path("src"), s.path("out"),
                                          "--recipe", recipe,        "--dry-run"};
  const Outcome o = run_program(words);
  CHECK(o.code == 0);
  CHECK(contains(o.out, "\nrule 1 (experts): v7 model.layers.0-1.mlp.experts.w13_comp  2 x "));
  CHECK(contains(o.out, "\nno rule: copy "));
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  size_t made = 0;
  const Json json = json_of(run_program(as_json));
  for (const Json& tensor : json["tensors"]) {
    const bool is_made = tensor["decision"] == "v7";
    CHECK((tensor["rule"] == "rule 1 (experts)") == is_made);
    made += is_made;
  }
  CHECK(made > 0);
  // Options have no rules to name.
  const Outcome plain = run_program({"convert", s.path("src"), s.path("out"), "--to", "v7", "--dry-run"});
  CHECK(contains(plain.out, "\nv7         model.layers."));
  CHECK(plain.out.find("rule") == plain.out.npos);
  CHECK(!fs::exists(s.path("out")));
}

TEST_CASE("of several rules the first that takes a module is named, for what it keeps, too") {
  const Source s;
  const std::string recipe =
      s.recipe("format: 1\nrules:\n- {match: \"model.layers.0.*\", to: keep}\n- {match: experts, to: v7}\n");
  const std::vector<std::string> words = {"convert", s.path("src"), s.path("out"), "--recipe", recipe};
  std::vector<std::string> dry = words;
  dry.push_back("--dry-run");
  const Outcome o = run_program(dry);
  CHECK(o.code == 0);
  CHECK(contains(o.out, "rule 2 (experts): v7 model.layers.1.mlp.experts.w13_comp "));
  CHECK(contains(o.out, "rule 1 (model.layers.0.*): copy model.layers.0."));
  CHECK(contains(o.out, "no rule: copy model.norm.weight"));
  CHECK(o.out.find("v7 model.layers.0.") == o.out.npos);
  REQUIRE(run_program(words).code == 0);
  CHECK(run_program({"validate", s.path("out"), "--source", s.path("src"), "-q"}).code == 0);
  const std::string unused =
      s.recipe("format: 1\nrules:\n- {match: experts, to: v7}\n- {match: \"model.layers.9.*\", to: keep}\n");
  check_one_line(run_program({"convert", s.path("src"), s.path("other"), "--recipe", unused}),
                 "rule 2 (model.layers.9.*): ");
  CHECK(!fs::exists(s.path("other")));
}

TEST_CASE("a shipped recipe serves models that lack one of its roles") {
  const Source s;
  REQUIRE(run_program({"convert", s.path("src"), s.path("bf16"), "--recipe", "bf16", "-q"}).code == 0);
  const Outcome o = run_program(
      {"convert", s.path("bf16"), s.path("out"), "--recipe", "fp8-attention-nvfp4-experts", "-q"});
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(run_program({"validate", s.path("out"), "--source", s.path("bf16"), "-q"}).code == 0);
  const std::string none = s.recipe("format: 1\nrules: [{match: [linear-attention, mtp], to: bf16}]\n");
  check_one_line(
      run_program({"convert", s.path("src"), s.path("other"), "--recipe", none}),
      "rule 1 (linear-attention and 1 more): match 'linear-attention': expected modules of that role");
}

TEST_CASE("--recipe excludes every option that a rule says") {
  for (const std::vector<std::string>& option :
       std::vector<std::vector<std::string>>{{"--to", "v7"},
                                             {"--include", "a"},
                                             {"--exclude", "a"},
                                             {"--also", "a"},
                                             {"--fold", "any"},
                                             {"--granularity", "row"},
                                             {"--block", "32x32"},
                                             {"--scale-dtype", "f32"},
                                             {"--odd-blocks", "keep"},
                                             {"--exact", "strict"},
                                             {"--input-scale", "none"},
                                             {"--one-input-scale-a-layer"},
                                             {"--dialect", "modelopt"},
                                             {"--pattern", "2:4"},
                                             {"--arithmetic", "modelopt"},
                                             {"--block-scale", "mse"},
                                             {"--zero-block", "zero"},
                                             {"--keep-global-scale", "x"}}) {
    std::vector<std::string> words = {"plan", "a", "b", "-o", "p.json", "--recipe", "v7-experts"};
    words.insert(words.end(), option.begin(), option.end());
    const std::string message = usage(words);
    CHECK_MESSAGE((message == fmt::format("twofour: {} excludes --recipe", option[0]) ||
                   message == fmt::format("twofour: --recipe excludes {}", option[0]) ||
                   (option[0] == "--to" && message.find("--to") != message.npos)),
                  message);
  }
  CHECK(usage({"convert", "a", "b", "--recipe", "v7-experts", "--to", "v7"}) ==
        "twofour: --to excludes --recipe");
  CHECK(usage({"convert", "--plan", "p.json", "--recipe", "v7-experts"}) ==
        "twofour: --recipe excludes --plan");
  CHECK(contains(usage({"quantize", "a", "b", "--recipe", "v7-experts"}), "--recipe"));
}

TEST_CASE("a bad recipe ends with exit code 2 and one line, and nothing is written") {
  const Source s;
  const auto refused = [&](const std::string& text, const std::string& message) {
    const std::string recipe = s.recipe(text);
    check_one_line(run_program({"convert", s.path("src"), s.path("out"), "--recipe", recipe}),
                   recipe + message);
    check_one_line(
        run_program({"plan", s.path("src"), s.path("out"), "-o", s.path("p.json"), "--recipe", recipe}),
        recipe + message);
    CHECK(!fs::exists(s.path("out")));
    CHECK(!fs::exists(s.path("p.json")));
  };
  refused("", ":1:1: expected a recipe, found nothing");
  refused("format: 2\nrules: []\n", ":1:9: format: expected 1, ");
  refused("format: 1\nrules:\n- match: experts\n  to: v7\n  granularity: row\n",
          ":5:16: rules[0].granularity: expected it only with to: fp8, found it with to: v7");
  refused("\xff", ":1:1: expected UTF-8");
  refused(std::string(2 << 20, 'a'), ": expected at most 1048576 bytes, found 2097152");
  check_one_line(
      run_program({"convert", s.path("src"), s.path("out"), "--recipe", "v7-expert"}),
      "--recipe: expected a file, or a name that twofour recipes lists, found 'v7-expert'; did you "
      "mean v7-experts?");
  check_one_line(run_program({"convert", s.path("src"), s.path("out"), "--recipe", s.path("none.yaml")}),
                 "none.yaml: ");
  check_one_line(run_program({"convert", s.path("src"), s.path("out"), "--recipe", s.path("src")}),
                 "src: expected a regular file, found something else");
  check_one_line(run_program({"convert", s.path("src"), s.path("out"), "--recipe", "-"}),
                 "--recipe: expected a file, or a name");
  const auto unmatched = [&](const std::string& match, const std::string& message) {
    const std::string recipe = s.recipe("format: 1\nrules:\n- match: " + match + "\n  to: v7\n");
    check_one_line(run_program({"convert", s.path("src"), s.path("out"), "--recipe", recipe}), message);
  };
  unmatched("'*.nothing'", "rule 1 (*.nothing): match '*.nothing': expected to match experts or an MLP");
  unmatched("model.nothing", "rule 1 (model.nothing): match 'model.nothing': expected to match ");
  unmatched("[experts, 're:nothing']", "match 're:nothing': expected to match ");
  unmatched("linear-attention", "match 'linear-attention': expected modules of that role, found none");
  CHECK(!fs::exists(s.path("out")));
}

TEST_CASE("every shipped recipe converts a model that it is for, and the result is proven and clean") {
  const std::pair<const char*, std::vector<const char*>> models[] = {
      {"deepseek-v3",
       {"nvfp4-experts", "nvfp4-all", "w4a4-experts", "fp8-attention-nvfp4-experts", "nvfp4-pruned-experts"}},
      {"deepseek-v4", {"nvfp4-experts-and-mtp", "deepseek-v4-nvfp4", "mxfp4-to-fp8", "bf16"}},
      {"gpt-oss", {"mxfp4-to-mxfp8"}},
      {"qwen3.6-35b-a3b", {"w4a16", "compressed-tensors", "pruned-experts", "v7-experts"}},
      {"qwen3.8-2.4t-a95b", {"modelopt", "v7-packed-experts", "g8-experts"}}};
  std::set<std::string> tried;
  for (const auto& [shape, recipes] : models) {
    const Scratch scratch;
    const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
    std::vector<std::string> words{"synth", src, "--shape", shape, "--small", "-q"};
    if (shape == std::string("deepseek-v4")) words.insert(words.end(), {"--dialect", "released"});
    REQUIRE(run_program(words).code == 0);
    for (const char* recipe : recipes) {
      CAPTURE(recipe);
      tried.insert(recipe);
      fs::remove_all(out);
      const Outcome o = run_program({"convert", src, out, "--recipe", recipe, "-q"});
      REQUIRE_MESSAGE(o.code == 0, o.err);
      const Outcome proof = run_program({"validate", out, "--source", src, "--tokens", "0", "-q"});
      CHECK_MESSAGE(proof.code == 0, proof.out, proof.err);
      const Outcome lint = run_program({"lint", out});
      CHECK_MESSAGE(lint.code == 0, lint.out);
    }
  }
  for (const ShippedRecipe& r : shipped_recipes()) CHECK_MESSAGE(tried.contains(std::string(r.name)), r.name);
}

TEST_CASE("experts that no rule of a recipe takes while others are converted are a warning") {
  const Source s;
  const auto warned = [&](const std::string& rules) {
    const Outcome o = run_program({"convert", s.path("src"), s.path("out"), "--recipe",
                                   s.recipe("format: 1\nrules: [" + rules + "]\n"), "--dry-run"});
    REQUIRE_MESSAGE(o.code == 0, o.err);
    return o.err.find("experts-left") != std::string::npos;
  };
  const std::string first = "model.layers.0.mlp.experts", second = "model.layers.1.mlp.experts";
  for (const std::string to : {"v7", "g8"}) {
    CAPTURE(to);
    CHECK(warned("{match: " + first + ", to: " + to + "}"));
    CHECK_FALSE(warned("{match: experts, to: " + to + "}"));
    CHECK_FALSE(warned("{match: " + first + ", to: " + to + "}, {match: experts, to: keep}"));
    CHECK_FALSE(warned("{match: " + first + ", to: " + to + "}, {match: " + second + ", to: v7-packed}"));
  }
  CHECK_FALSE(warned("{match: '" + first + ".*', to: bf16}"));
  CHECK_FALSE(warned("{match: attention, to: keep}"));
  REQUIRE(run_program({"convert", s.path("src"), s.path("src2"), "--recipe", "bf16", "-q"}).code == 0);
  fs::rename(s.path("src"), s.path("src1"));
  fs::rename(s.path("src2"), s.path("src"));
  CHECK(warned("{match: '" + first + ".*', to: nvfp4}"));
  CHECK_FALSE(warned("{match: '" + first + ".*', to: nvfp4}, {match: experts, to: keep}"));
  CHECK_FALSE(warned("{match: attention, to: nvfp4}"));
}

TEST_CASE("the size of files is the recipe's, unless an option gives another") {
  const Source s;
  const std::string recipe = s.recipe("format: 1\nmax_shard_size: 50kB\nrules: [{match: experts, to: v7}]\n");
  const auto files = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"convert", s.path("src"), s.path("out"), "--recipe",
                                      recipe,    "--dry-run",   "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(run_program(words))["files"].size();
  };
  CHECK(files({}) > 2);
  CHECK(files({"--max-shard-size", "5GB"}) == 1);
}

TEST_CASE("the tasks of a plan made by a recipe write what a conversion writes") {
  const Source s;
  REQUIRE(run_program({"convert", s.path("src"), s.path("whole"), "--recipe", "v7-experts", "-q"}).code == 0);
  REQUIRE(run_program(
              {"plan", s.path("src"), s.path("out"), "--recipe", "v7-experts", "-o", s.path("p.json"), "-q"})
              .code == 0);
  REQUIRE(run_program({"convert", "--plan", s.path("p.json"), "--task", "0/1", "-q"}).code == 0);
  REQUIRE(run_program({"merge", s.path("out"), "-q"}).code == 0);
  CHECK(read_text(s.path("out") + "/twofour.json") == read_text(s.path("whole") + "/twofour.json"));
  // An interrupted run goes on by the same recipe.
  CHECK(run_program({"convert", s.path("src"), s.path("whole"), "--recipe", "v7-experts", "--resume", "-q"})
            .code == 0);
}

TEST_CASE("a rule that earlier ones leave nothing is refused, whatever it makes") {
  const Source s;
  for (const char* to : {"keep", "bf16", "fp8, granularity: tensor", "mxfp4", "v7", "g8"}) {
    CAPTURE(to);
    const std::string recipe = s.recipe(
        fmt::format("format: 1\nrules: [{{match: experts, to: keep}}, {{match: experts, to: {}}}]\n", to));
    const Outcome o = run_program({"convert", s.path("src"), s.path("out"), "--recipe", recipe});
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.starts_with("twofour: rule 2 (experts): "), o.err);
    CHECK(!fs::exists(s.path("out")));
  }
}

namespace {

struct Published {
  const char *shape, *dialect, *layers;
  std::vector<std::string> words;  ///< of convert
  const char* refusal;             ///< "": it is converted, proven and linted clean
};

}  // namespace

TEST_CASE("published mixtures are respelled, widened in part and kept beside other rules") {
  const Scratch scratch;
  const auto path = [&](const std::string& name) { return (scratch / name).string(); };
  write_text(scratch / "kept.yaml",
             "format: 1\nrules: [{match: experts, to: keep}, {match: \"*\", to: fp8, granularity: row}]\n");
  const Published all[] = {
      {"glm-5.2", "quark", "5", {"--to", "nvfp4", "--dialect", "modelopt"}, ""},
      {"glm-5.2", "quark", "5", {"--to", "nvfp4", "--dialect", "compressed-tensors"}, ""},
      {"deepseek-v4", "released", "3", {"--to", "nvfp4", "--dialect", "compressed-tensors"}, ""},
      {"deepseek-v4",
       "compressed-tensors",
       "3",
       {"--to", "nvfp4", "--dialect", "deepseek-v4"},
       "expected a source in this dialect"},
      {"kimi-k2-thinking", "released", "3", {"--to", "nvfp4", "--dialect", "compressed-tensors"}, ""},
      {"qwen3.6-35b-a3b", "nvidia", "4", {"--to", "bf16", "--include", "*.experts.*"}, ""},
      {"qwen3.6-35b-a3b", "nvidia", "4", {"--recipe", path("kept.yaml")}, ""},
      {"llama",
       "modelopt",
       "2",
       {"--to", "bf16", "--include", "*.0.mlp.gate_proj"},
       "because loaders give linears that they fuse one format"},
      {"tiny",
       "modelopt",
       "2",
       {"--to", "bf16", "--include", "*layers.1.mlp.*gate_proj"},
       "because loaders give the experts of a layer one format"},
  };
  size_t number = 0;
  for (const Published& p : all) {
    CAPTURE(p.shape);
    CAPTURE(p.dialect);
    CAPTURE(p.words.back());
    const std::string src = path(fmt::format("src{}", number)), out = path(fmt::format("out{}", number++));
    REQUIRE(run_program({"synth", src, "--shape", p.shape, "--dialect", p.dialect, "--small", "--layers",
                         p.layers, "-q"})
                .code == 0);
    std::vector<std::string> words = {"convert", src, out};
    words.insert(words.end(), p.words.begin(), p.words.end());
    const Outcome o = run_program(words);
    if (*p.refusal != '\0') {
      CHECK(o.code == 2);
      CHECK_MESSAGE(o.err.find(p.refusal) != o.err.npos, o.err);
      CHECK(!fs::exists(out));
      continue;
    }
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK(run_program({"validate", out, "--source", src, "-q"}).code == 0);
    CHECK(run_program({"lint", out, "-q"}).code == 0);
  }
}

}  // namespace cli_recipe_test
