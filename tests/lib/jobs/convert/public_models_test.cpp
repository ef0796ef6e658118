#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "formats/naming.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/look/diff/gate.h"
#include "lib/recipe/artifact/recipe_file.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/linears.h"
#include "lib/synth/shapes.h"
#include "lib/synth/synth.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/conversion.h"
#include "tests/support/diff_of.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

/// Checkpoints as they were published, small, through every recipe that users want of them: converted,
/// validated, linted clean and held against their source as numbers.

namespace public_models_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// How far weights that a recipe takes may lie from the source's.
struct Wish {
  const char* recipe;
  const char* gate;      ///< of experts
  bool keeps_the_rest;   ///< of what is no expert every value stays
  double tolerance = 0;  ///< of all values
};
constexpr Wish kWishes[] = {
    {"nvfp4-experts", "cosine<0.99", true},  {"nvfp4-all", "cosine<0.99", false},
    {"bf16", "cosine<0.999", false, 0x1p-8}, {"v7-experts", "cosine<0.9", true},
    {"g8-experts", "cosine<0.99", true},
};

/// Every publication of a real model in mixed or vendors' formats.
std::vector<SynthOptions> published() {
  std::vector<SynthOptions> rows;
  for (const SynthShape& shape : synth_shape_table()) {
    for (const SynthPublication& p : shape.publications) {
      const std::string_view dialect = p.dialect;
      if (dialect == "modelopt" || dialect == "compressed-tensors" || dialect == "awq" || dialect == "gptq")
        continue;
      SynthOptions& o = rows.emplace_back();
      o.shape = shape.name;
      o.dialect = p.dialect;
      o.small = true;
      o.vocab = 64;
    }
  }
  return rows;
}

/// The recipes that a model cannot follow; empty: it can follow all.
std::string refusal(const SynthOptions& row, const std::string& recipe) {
  const bool has_gate = !row.shape.starts_with("nemotron-3");
  const bool has_experts = row.shape != "qwen3.8-27b";
  if (!has_experts && recipe.ends_with("experts"))
    return "rule 1 (experts): match 'experts': expected modules of that role, found none";
  // The whole draft would be read as NVFP4: nvfp4-experts-and-mtp is for these.
  if (row.dialect == "base" && recipe.starts_with("nvfp4-"))
    return "mtp.0.ffn.experts.0.w1: expected the draft's experts in NVFP4";
  if (!has_gate && recipe == "g8-experts")
    return ".mixer.experts.w13: expected gate and up, because g8 pairs their rows, found only up, as in "
           "models without gates; v7 and v7-packed support it";
  return "";
}

void convert_by(const Recipe& recipe, const fs::path& source, const fs::path& destination) {
  const Checkpoint checkpoint = open_to_convert(source, recipe, Io::kCached, {});
  const Plan plan = make_plan(checkpoint, recipe, {});
  Progress progress;
  convert(checkpoint, plan, destination, {}, progress);
}

std::string linted(const fs::path& path) {
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(path, {}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

bool is_routed(const std::string& name, int64_t layers) {
  return module_role(name, layers) == ModuleRole::kRoutedExperts;
}

/// Entries that differ by more than the wish allows.
std::string differences(const fs::path& source, const fs::path& out, const Wish& wish, int64_t layers) {
  const DiffResult result = diff_of(source, out, {.include = {}, .exclude = {}, .tolerance = wish.tolerance});
  const DiffGate near = parse_diff_gate({wish.gate}), exact = default_diff_gate();
  std::string text;
  for (const DiffEntry& e : result.entries) {
    if (e.kind == DiffKind::kInputScale) continue;  // formats with other activations lose or get one
    // Without a configuration nothing says that the KV cache is quantized.
    const bool is_kv_scale = e.name.ends_with(".k_scale") || e.name.ends_with(".v_scale");
    if (is_kv_scale && wish.recipe == std::string("bf16") && e.cls == DiffClass::kRemoved) continue;
    const bool taken = e.kind == DiffKind::kWeights && e.cls == DiffClass::kDifferent &&
                       (!wish.keeps_the_rest || is_routed(e.name, layers));
    if (taken ? near.fails(e) : exact.fails(e))
      text += fmt::format("{}: {} {}\n", e.name, diff_class_name(e.cls), e.message);
  }
  return text;
}

/// Experts of the model, and everything where a recipe says so, are in the format that was asked for.
void check_formats(const fs::path& out, const Wish& wish, int64_t layers) {
  const std::string recipe = wish.recipe;
  if (recipe == "bf16") {
    CHECK(read_text(out / "config.json").find("quantization_config") == std::string::npos);
    CHECK(!fs::exists(out / "hf_quant_config.json"));
  }
  if (recipe == "v7-experts" || recipe == "g8-experts") return;  // diff reads what is shown
  for (const Linear& m : find_weight_modules(Checkpoint::open(out))) {
    CAPTURE(m.name);
    if (recipe == "bf16") {
      CHECK(m.format == WeightFormat::kFloat);
    } else if (is_routed(m.name, layers)) {
      CHECK(m.format == WeightFormat::kNvfp4);
    }
  }
}

}  // namespace

TEST_CASE("public models go through every recipe, sound, clean and with the values of their source") {
  for (const SynthOptions& row : published()) {
    CAPTURE(row.shape);
    CAPTURE(row.dialect);
    const Scratch scratch;
    Progress progress;
    synth(scratch / "src", row, progress);
    CHECK(linted(scratch / "src") == "");
    const int64_t layers = model_layers(Checkpoint::open(scratch / "src").config());
    for (const Wish& wish : kWishes) {
      CAPTURE(wish.recipe);
      const fs::path out = scratch / wish.recipe;
      const Recipe recipe = read_recipe(wish.recipe, find_shipped_recipe(wish.recipe)->text);
      const std::string refused = refusal(row, wish.recipe);
      const std::string message = message_of([&] { convert_by(recipe, scratch / "src", out); });
      CHECK(message.empty() == refused.empty());
      CHECK_MESSAGE(message.find(refused) != std::string::npos, message);
      CHECK(fs::exists(out) == refused.empty());
      if (!fs::exists(out)) continue;
      CHECK(text_of(validate_from(scratch / "src", out).differences) == "");
      CHECK(linted(out) == "");
      CHECK(differences(scratch / "src", out, wish, layers) == "");
      check_formats(out, wish, layers);
      fs::remove_all(out);
    }
  }
}

}  // namespace public_models_test
