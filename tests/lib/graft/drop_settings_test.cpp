#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "formats/naming.h"
#include "lib/lint/lint.h"
#include "lib/synth/synth.h"
#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

// The result of a drop has a config.json that fits it.

namespace drop_settings_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Findings above a note, "ID where: message", but for tensors of the model that are not there: that is what
/// was asked for, and no setting can say it.
std::vector<std::string> findings_of_config(const fs::path& path) {
  Progress progress;
  std::vector<std::string> found;
  LintOptions options;
  options.headers_only = true;
  for (const LintFinding& f : lint(path, options, progress).findings) {
    const std::string id = lint_rules()[f.rule].id;
    if (f.severity == Severity::kNote || id == "tensor-missing" || id == "head-missing" ||
        id == "experts-missing")
      continue;
    found.push_back(fmt::format("{} {}: {}", id, f.where(), f.message));
  }
  return found;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

void check_drop(const Scratch& scratch, const std::vector<std::string>& patterns) {
  fs::remove_all(scratch / "out");
  const Checkpoint view = open_edited(scratch / "src", {}, drop_of(patterns));
  ConvertOptions options;
  options.verify = false;  // the proof reads it
  Progress progress;
  convert(view, make_plan(view, Recipe(drop_of(patterns), 1u << 30)), scratch / "out", options, progress);
  CHECK(joined(findings_of_config(scratch / "out")) == "");
  CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
}

bool has_role(const Checkpoint& c, ModuleRole role, int64_t layers) {
  return std::any_of(c.tensors().begin(), c.tensors().end(), [&](const TensorInfo& t) {
    return module_role(t.name.substr(0, t.name.rfind('.')), layers) == role;
  });
}

/// Drops each role that a known model of some layers has; returns how many.
size_t drop_roles(const std::string& shape, const std::string& dialect, int64_t layers) {
  CAPTURE(shape);
  CAPTURE(dialect);
  const Scratch scratch;
  SynthOptions options;
  options.shape = shape;
  options.dialect = dialect;
  options.layers = layers;
  if (const int64_t least = synth_least_experts(shape); least > 0) options.experts = least;
  options.vocab = 64;
  options.small = true;
  Progress progress;
  synth(scratch / "src", options, progress);
  REQUIRE(joined(findings_of_config(scratch / "src")) == "");
  size_t drops = 0;
  for (int r = 0; r <= static_cast<int>(ModuleRole::kEmbeddings); ++r) {
    const auto role = static_cast<ModuleRole>(r);
    if (!has_role(Checkpoint::open(scratch / "src"), role, layers)) continue;
    CAPTURE(role_name(role));
    check_drop(scratch, {std::string(role_name(role))});
    ++drops;
  }
  return drops;
}

/// A tensor of a family's row in layer 0, expert 0, as small as its kind may be.
TensorData tensor_of(const FamilyRow& row) {
  std::string name = row.name;
  std::replace(name.begin(), name.end(), '#', '0');
  const bool is_vector = row.kind == ParameterKind::kNorm || row.kind == ParameterKind::kVector;
  const bool is_stack = row.is_stack() || row.kind == ParameterKind::kConvolution;
  const std::vector<int64_t> shape(is_vector ? 1 : is_stack ? 3 : 2, 1);
  return {name, DType::kBF16, shape, {0, 0}};
}

/// The values that a config may have for a switch that is on: those of its family, or any.
Json on_value(const FamilyShapes& family, const std::string& key) {
  const Json defaults = family_defaults(family);
  const auto at = defaults.find(key);
  const bool is_count = at != defaults.end() && at->is_number();
  return is_count ? Json(1) : Json(true);
}

}  // namespace

TEST_CASE("a drop of any role from any known model leaves a config without a fault") {
  size_t drops = 0;
  for (const std::string& shape : synth_shapes()) {
    for (const std::string& dialect : synth_dialects(shape)) drops += drop_roles(shape, dialect, 4);
  }
  CHECK(drops > 150);
  CHECK(drop_roles("glm-5.2", "nvidia-mixed", 3) > 3);  // of which attention alone is quantized
}

TEST_CASE("a drop of all that a switch of any family promises turns it off, and a graft of it on again") {
  size_t switches = 0;
  for (const FamilyShapes& family : family_shapes()) {
    const std::vector<FamilyRow> rows = family_rows(family.parameters);
    for (const std::string& key : family_switches(rows)) {
      const auto is_switched = [&](const FamilyRow& row) { return has_term(row.when, key); };
      // The kind of a layer and other switches decide some rows, too. All are on, in the order of a set.
      Json config = {{"model_type", family.model_types[0]},
                     {"num_hidden_layers", 1},
                     {"hidden_size", 1},
                     {"vocab_size", 1}};
      for (const std::string& other : family_switches(rows)) config[other] = on_value(family, other);
      if (*family.experts.count != '\0') config[family.experts.count] = 1;
      const FamilySizes sizes(family, config);
      Tensors tensors;
      std::vector<std::string> switched;
      std::set<std::string> names;
      for (const FamilyRow& row : rows) {
        const int64_t layer = row.has_layer ? 0 : -1;
        if (!sizes.holds(row.when, layer)) continue;
        TensorData t = tensor_of(row);
        if (!names.insert(t.name).second) continue;
        if (is_switched(row) && !has_term(row.when, "may")) switched.push_back(t.name);
        tensors.push_back(std::move(t));
      }
      if (switched.empty() || switched.size() == tensors.size()) continue;
      CAPTURE(std::string(family.model_types[0]));
      CAPTURE(key);
      const Scratch scratch;
      write_checkpoint(scratch / "src", {tensors}, config.dump());
      const Checkpoint left = open_edited(scratch / "src", {}, drop_of(switched));
      const Json& now = left.config()[key];
      const bool is_off = now.is_null() || now == Json(false) || now == Json(0);
      CHECK_MESSAGE(is_off, now.dump());
      write_edited(scratch / "src", {}, drop_of(switched), scratch / "out");
      for (const std::string& finding : findings_of_config(scratch / "out"))
        CHECK_MESSAGE(!finding.starts_with("config-switch"), finding);
      CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
      write_edited(scratch / "out", scratch / "src", graft_of(switched), scratch / "back");
      CHECK(json_at(scratch / "back/config.json") == config);
      CHECK(differences_of_edit(scratch / "back", scratch / "out", scratch / "src") == "");
      ++switches;
    }
  }
  CHECK(switches > 60);
}

}  // namespace drop_settings_test
