#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"

// Rows of families against headers that transformers 5.17 writes of small models of them: golden/families,
// made by tests/loaders/families_golden.py. A row has every name and size of them, and misses what is lost.

namespace lint_families_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(TWOFOUR_GOLDEN_DIR) / "families";

/// Tensors whose names differ in numbers alone.
struct Named {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> layers;
  int64_t parts;  ///< experts of a layer; 0: it is one tensor
};

struct Golden {
  std::string config;
  std::vector<Named> tensors;
};

Golden read_golden(const fs::path& path) {
  const Json json = parse_json(path.string(), read_text(path));
  Golden golden{format_json(json["config"]), {}};
  for (const Json& row : json["tensors"]) {
    const DType dtype = row[1] == Json("BF16")  ? DType::kBF16
                        : row[1] == Json("I64") ? DType::kI64
                                                : DType::kF32;
    golden.tensors.push_back({row[0].get<std::string>(), dtype, row[2].get<std::vector<int64_t>>(),
                              row[3].get<std::vector<int64_t>>(), row[4].get<int64_t>()});
  }
  return golden;
}

std::string numbered(std::string name, int64_t number) {
  const size_t at = name.find('#');
  return at == name.npos ? name : name.replace(at, 1, std::to_string(number));
}

TensorData tensor(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const size_t bytes = dtype == DType::kBF16 ? 2 : dtype == DType::kI64 ? 8 : 4;
  return {name, dtype, shape, std::vector<uint8_t>(static_cast<size_t>(count) * bytes)};
}

Tensors expand(const Golden& golden) {
  Tensors all;
  for (const Named& row : golden.tensors) {
    for (const int64_t layer : row.layers.empty() ? std::vector<int64_t>{0} : row.layers) {
      for (int64_t part = 0; part < std::max<int64_t>(row.parts, 1); ++part)
        all.push_back(tensor(numbered(numbered(row.name, layer), part), row.dtype, row.shape));
    }
  }
  return all;
}

/// Findings above a note, a line each.
std::string alarms(const Tensors& tensors, const std::string& config) {
  const Scratch scratch;
  write_checkpoint(scratch / "checkpoint", {tensors}, config);
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(scratch / "checkpoint", {.headers_only = true}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

std::vector<fs::path> goldens() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGolden)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// What a model of the family may lack: it is not told whether one does.
bool may_lack(const std::string& name) {
  for (const char* part :
       {"layer_multipliers", "ngram_", "router_bias", "router_states_scale", "self_attn.g_proj"}) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}
/// Of a shape that rows do not describe: neither is missed.
bool has_any_shape(const std::string& name) {
  for (const char* part :
       {"layer_multipliers", "ngram_", "conv_qk_grouped.weight", "A_log", "shared_w", "unembed"}) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("nothing is found in headers of families as transformers writes them") {
  REQUIRE(goldens().size() >= 14);
  for (const fs::path& path : goldens()) {
    CAPTURE(path.filename().string());
    const Golden golden = read_golden(path);
    CHECK(alarms(expand(golden), golden.config) == "");
  }
}

TEST_CASE("a tensor that a family has and a checkpoint lacks is found, and one of another size") {
  for (const fs::path& path : goldens()) {
    CAPTURE(path.filename().string());
    const Golden golden = read_golden(path);
    const Tensors all = expand(golden);
    for (const Named& row : golden.tensors) {
      CAPTURE(row.name);
      if (has_any_shape(row.name)) continue;
      // Of all experts or blocks of a layer.
      const std::string name = numbered(row.name, row.layers.empty() ? 0 : row.layers.back());
      Tensors without = all;
      for (int64_t part = 0; part < std::max<int64_t>(row.parts, 1); ++part)
        std::erase_if(without, [&](const TensorData& t) { return t.name == numbered(name, part); });
      if (!may_lack(row.name)) CHECK(alarms(without, golden.config) != "");
      const auto at = std::find_if(all.begin(), all.end(),
                                   [&](const TensorData& t) { return t.name == numbered(name, 0); });
      REQUIRE(at != all.end());
      Tensors larger = all;
      std::vector<int64_t> shape = row.shape;
      shape.back() += 2;
      larger[static_cast<size_t>(at - all.begin())] = tensor(at->name, row.dtype, shape);
      CHECK(alarms(larger, golden.config) != "");
    }
  }
}

TEST_CASE("a tensor that no model of a family has is found") {
  for (const fs::path& path : goldens()) {
    CAPTURE(path.filename().string());
    const Golden golden = read_golden(path);
    Tensors all = expand(golden);
    const auto in_layer = std::find_if(golden.tensors.begin(), golden.tensors.end(),
                                       [](const Named& row) { return !row.layers.empty(); });
    const std::string layer = in_layer->name.substr(0, in_layer->name.find("#.") + 2);
    if (layer.starts_with("model.llm.")) continue;  // nested under a name of its own: not looked at
    all.push_back(tensor(numbered(layer, 1) + "self_attn.odd_proj.weight", DType::kBF16, {4, 4}));
    CHECK(alarms(all, golden.config).find("tensor-unknown") != std::string::npos);
  }
}

}  // namespace lint_families_test
