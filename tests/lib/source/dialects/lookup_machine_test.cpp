#include "lib/source/dialects/lookup_machine.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace lookup_machine_test {

using namespace twofour;
using namespace twofour::lookups;
using namespace schemes;
using Kind = EngineLayer::Kind;

namespace {

// A made-up engine: all that one consists of, as CONTRIBUTING.md has it under "To add".

/// Lists have ends of names and, behind "not:", words that must not be in them.
constexpr ListRules kLists = {
    .engine = "Made-up",
    .takes = [](std::string_view text, std::string_view name) { return name.ends_with(text); },
    .takes_fused = true,
    .pattern = [](const std::string& text) -> NameTest {
      if (!text.starts_with("not:")) return {};
      return [word = text.substr(4)](const std::string& name) { return name.find(word) == name.npos; };
    },
    .names = [](const EngineLayer& layer) { return std::vector<std::string>{layer.name}; }};
constexpr std::string_view kLoaders[] = {"FP8", "NVFP4"};

std::unique_ptr<LoaderLookup> read_made_up(const LoadedConfig& config, const std::vector<LoadedModule>&) {
  const Json& entry = config.quantization_config;
  const std::string algorithm = algorithm_of(entry);
  return lookup_by({limit_of(Kind::kHead, "has no loader for heads"),
                    leave({kLists, strings_of_all(entry, {"ignore", "skipped"})}),
                    read_algorithm({kLoaders, {}}, algorithm, configured_scheme(entry))});
}

constexpr Engine kMadeUp[] = {{"Made-up", read_made_up}};

std::string findings(const Json& config, const std::vector<LoadedModule>& modules) {
  std::string text;
  for (const LookupFinding& f : check_lookups({config}, modules, kMadeUp))
    text += (f.is_limit ? "limit " : "fault ") + f.module + ": " + f.message + "\n";
  return text;
}

const LoadedModule kDown = {"model.layers.0.mlp.down_proj", {kFp8Tensor}};
const LoadedModule kFloats = {"model.layers.0.mlp.down_proj", {kFloat}};

}  // namespace

TEST_CASE("an engine is a row: what it does follows from its lists, loaders and steps") {
  const Json all = {{"quant_algo", "FP8"}};
  CHECK(findings(all, {kDown}) == "");
  CHECK(findings(all, {kFloats}) ==
        "fault model.layers.0.mlp.down_proj: expected Made-up to read unquantized, "
        "found FP8 with a scale a tensor\n");
  CHECK(findings({{"quant_algo", "FP8"}, {"skipped", {"mlp.down_proj"}}}, {kFloats}) == "");
  CHECK(findings({{"quant_algo", "FP8"}, {"ignore", {"not:attn"}}}, {kFloats}) == "");
  CHECK(findings({{"quant_algo", "FP8"}, {"ignore", {"not:down"}}}, {kDown}) == "");
  CHECK(findings(all, {{"lm_head", {kFp8Tensor}}}) == "limit lm_head: Made-up has no loader for heads\n");
  CHECK(findings(all, {{"model.layers.0.mlp.experts.0.up_proj", {kFp8Tensor}}}) ==
        "limit model.layers.0.mlp.experts.0.up_proj: Made-up has no loader for FP8 in experts\n");
}

TEST_CASE("of what is fused a list has all or none") {
  const std::vector<LoadedModule> modules = {{"a.self_attn.q_proj", {kFp8Tensor}},
                                             {"a.self_attn.k_proj", {kFp8Tensor}}};
  CHECK(findings({{"quant_algo", "FP8"}, {"ignore", {"q_proj"}}}, modules) ==
        "fault a.self_attn.q_proj: expected Made-up to find all of a.self_attn.qkv_proj excluded or none, "
        "since "
        "it fuses them, found 1 of 2\n");
  CHECK(findings({{"quant_algo", "FP8"}, {"ignore", {"x"}}}, modules) == "");
}

TEST_CASE("a pattern that cannot be followed is known as such") {
  CHECK(ModuleList(kLists, {"not:x"}).all_known());
  CHECK(!ModuleList(kLists, {"not:x", "y"}).all_known());
}

}  // namespace lookup_machine_test
