#include <doctest/doctest.h>

#include <algorithm>

#include "formats/layouts/layouts.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "lib/look/diff/diff.h"
#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/run/runtime/artifact.h"
#include "lib/write/plan/method.h"
#include "lib/write/plan/plan.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace layout_names_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

Rule rule_for(const std::string& to, const std::string& include) {
  Rule rule{.to = to};
  rule.selection.include = parse_patterns({include});
  return rule;
}

/// An artifact with two layouts.
struct Mixed {
  Scratch scratch;
  fs::path path = scratch / "mixed";
  Mixed() {
    Tensors tensors;
    for (unsigned layer = 0; layer < 2; ++layer) {
      add_experts(tensors, "model.layers." + std::to_string(layer) + ".mlp.experts",
                  random_experts(2, 32, 64, layer + 1));
    }
    write_checkpoint(scratch / "src", {tensors}, R"({"num_experts": 2})");
    Recipe recipe(rule_for("v7", "model.layers.0.*"));
    recipe.rules.push_back(rule_for("g8", "model.layers.1.*"));
    const Checkpoint source = open_source(scratch / "src");
    Progress progress;
    convert(source, make_plan(source, recipe), path, {}, progress);
  }
  /// Replaces the first place of a text in a file.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_text(path / file);
    const size_t at = text.find(from);
    REQUIRE(at != text.npos);
    text.replace(at, from.size(), to);
    if (file == kManifestName) return write_sealed(path / file, text);
    fs::remove(path / file);
    write_text(path / file, text);
  }
};

/// The messages of all readers of an artifact, which must agree.
void check_refused(const Mixed& m, const std::string& part) {
  CHECK(contains(message_of([&] { open_source(m.path); }), part));
  CHECK(contains(message_of([&] { validate(m.path); }), part));
  CHECK(contains(message_of([&] { validate_from(m.scratch / "src", m.path); }), part));
  CHECK(contains(message_of([&] { RuntimeArtifact::open(m.path); }), part));
  const InspectReport report = inspect(Checkpoint::open(m.path), {}, false, 1);
  CHECK(contains(text_of(report.findings), part));
}

std::string lint_text(const fs::path& path) {
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(path, {}, progress).findings)
    text += std::string(lint_rules()[f.rule].id) + ": " + f.where() + ": " + f.message + "\n";
  return text;
}

}  // namespace

TEST_CASE("every method is a layout or one of the other names, and nothing else is") {
  size_t layouts = 0;
  for_each_layout([&]<class L>() { ++layouts; });
  CHECK(methods().size() == layouts + other_method_names().size());
  for (const MethodRow& row : methods()) {
    const auto& others = other_method_names();
    const bool known = with_layout(row.name, []<class L>() {}) ||
                       std::find(others.begin(), others.end(), row.name) != others.end();
    CHECK_MESSAGE(known, row.name);
  }
}

TEST_CASE("a layout that this version does not know is refused by every reader, and found by lint") {
  struct Case {
    const char *file, *from, *to, *place;
  };
  for (const Case& c : {
           Case{"config.json", "\"layout\": \"mixed\"", "\"layout\": \"v9\"",
                "config.json: quantization_config.layout: "},
           Case{"config.json", "\"layout\": \"g8\"", "\"layout\": \"v9\"",
                "config.json: quantization_config.groups[1].layout: "},
           Case{"twofour.json", "\"layout\": \"mixed\"", "\"layout\": \"v9\"", "twofour.json: layout: "},
           Case{"twofour.json", "{\"layout\":\"v7\"", "{\"layout\":\"v9\"",
                "twofour.json: groups[0].layout: "},
           Case{"twofour.json", "experts.w2\",\"layout\":\"v7\"", "experts.w2\",\"layout\":\"v9\"",
                "twofour.json: model.layers.0.mlp.experts.w2: layout: "},
       }) {
    CAPTURE(c.place);
    const Mixed m;
    m.replace(c.file, c.from, c.to);
    check_refused(m, std::string(c.place) +
                         "expected a layout that this version knows (v7, v7-packed or g8), found \"v9\"; use "
                         "the version of twofour that wrote it, or a newer one");
    const std::string found = lint_text(m.path);
    CHECK(contains(found, "unknown-layout: " + std::string(c.place) + "expected a layout that this version"));
  }
}

TEST_CASE("layouts that a manifest names twice must agree") {
  struct Case {
    const char *from, *to, *message;
  };
  const std::string groups = "\"layout\": \"mixed\",\n";
  for (const Case& c : {
           Case{"\"layout\": \"mixed\",\n", "", "groups: expected layout and groups, or neither of them"},
           Case{"\"layout\": \"mixed\"", "\"layout\": \"g8\"", "layout: expected \"mixed\" beside groups"},
           Case{"\"layout\": \"mixed\"", "\"layout\": 7",
                "layout: expected layout as a string, found number"},
           Case{"\"groups\": [", "\"groupies\": [", "layout: expected layout and groups, or neither of them"},
           Case{"\"groups\": [", "\"groups\": {}, \"x\": [", "groups: expected a list, found object"},
           Case{"\"groups\": [", "\"groups\": [7,", "groups[0]: expected layout as a string, found none"},
           Case{"\"pattern\":\"2:4\"", "\"pattern\":\"4:8\"", "groups[0]: expected pattern \"2:4\" of v7"},
           Case{"\"modules\":[\"model.layers.0.mlp.experts\"]", "\"modules\":[]",
                "groups[0]: expected modules as a list of names, found another value"},
           Case{"\"modules\":[\"model.layers.0.mlp.experts\"]",
                "\"modules\":[\"model.layers.1.mlp.experts\"]",
                "groups: expected a group of layout v7 with \"model.layers.0.mlp.experts.w13\", found none"},
           Case{"\"modules\":[\"model.layers.0.mlp.experts\"]",
                "\"modules\":[\"model.layers.0.mlp.experts\",\"model.layers.1.*\"]",
                "groups[0]: expected only modules of layout v7, found \"model.layers.1.*\", which is not a "
                "layout"},
       }) {
    CAPTURE(c.message);
    const Mixed m;
    m.replace(kManifestName, c.from, c.to);
    check_refused(m, std::string("twofour.json: ") + c.message);
    CHECK(contains(lint_text(m.path), std::string("bad-manifest: twofour.json: ") + c.message));
  }
  const Mixed m;
  const std::string text = read_text(m.path / kManifestName);
  const size_t from = text.find("\"layout\": \"mixed\""), to = text.find("\"modules\": [\n");
  m.replace(kManifestName, text.substr(from, to - from), "");
  check_refused(m, "modules: expected one layout, because there are no groups, found g8 and v7");
}

}  // namespace layout_names_test
