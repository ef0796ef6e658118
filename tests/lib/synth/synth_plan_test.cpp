#include "lib/synth/auxiliary_files.h"
#include "lib/synth/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "formats/dialect.h"
#include "formats/error.h"
#include "formats/json.h"
#include "formats/naming.h"
#include "formats/safetensors.h"
#include "lib/base/names/natural.h"
#include "lib/base/names/pattern.h"

namespace synth_plan_test {

using namespace twofour;

namespace {

/// With layers of both kinds of a hybrid model, and few experts.
SynthModel few_layers(const SynthShape& shape, const char* dialect, int64_t layers = 4) {
  SynthChoice choice{.shape = shape.name, .dialect = dialect, .layers = layers, .experts = {}, .vocab = 64};
  const int64_t experts = make_synth_model(choice).experts;
  if (experts > 0) choice.experts = std::min<int64_t>(experts, 12);
  return make_synth_model(choice);
}

}  // namespace

TEST_CASE("shards are filled in natural order up to the limit") {
  for (const SynthShape& shape : single_format_shapes()) {
    CAPTURE(shape.name);
    constexpr uint64_t kLimit = 40'000'000;
    const SynthFiles plan(few_layers(shape, "modelopt"), kLimit);
    std::string last;
    uint64_t bytes = 0;
    size_t count = 0;
    for (const SynthShard& shard : plan.shards()) {
      auto header =
          parse_safetensors_header(shard.name, std::string_view(shard.header).substr(8), shard.data_bytes);
      CHECK((shard.data_bytes <= kLimit || header.tensors.size() == 1));
      std::sort(header.tensors.begin(), header.tensors.end(),
                [](const TensorInfo& a, const TensorInfo& b) { return natural_less(a.name, b.name); });
      CHECK((last.empty() || natural_less(last, header.tensors.front().name)));
      last = header.tensors.back().name;
      count += header.tensors.size();
      bytes += shard.data_bytes;
    }
    CHECK(count == plan.tensor_count());
    CHECK(bytes == plan.data_bytes());
  }
}

TEST_CASE("every shape has the names that readers know") {
  for (const SynthShape& shape : single_format_shapes()) {
    for (const char* name : {"modelopt", "compressed-tensors"}) {
      CAPTURE(shape.name);
      CAPTURE(name);
      const SynthModel model = few_layers(shape, name);
      const SynthFiles plan(model, 1u << 30);
      std::vector<TensorInfo> tensors;
      for (const SynthShard& shard : plan.shards()) {
        const auto header =
            parse_safetensors_header(shard.name, std::string_view(shard.header).substr(8), shard.data_bytes);
        tensors.insert(tensors.end(), header.tensors.begin(), header.tensors.end());
      }
      std::sort(tensors.begin(), tensors.end(),
                [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
      const auto modules = find_nvfp4_modules(tensors, [](size_t) { return std::string("shard"); });
      int64_t routed = 0, mlp = 0;
      for (const Nvfp4Linear& m : modules) {
        CHECK(std::string_view(m.dialect->name) == name);
        CHECK(m.input_scale.has_value());
        const auto parsed = parse_module_name(m.name);
        if (!parsed) continue;  // o_proj
        ++mlp;
        routed += parsed->kind == BlockKind::kRoutedExperts;
      }
      CHECK(routed == 3 * model.layers * model.experts);
      CHECK(mlp >= 3 * model.layers);
    }
  }
}

TEST_CASE("what is not quantized, and nothing else, is in the ignore list") {
  for (const SynthShape& shape : single_format_shapes()) {
    for (const char* name : {"modelopt", "compressed-tensors"}) {
      for (const int64_t layers : {1, 4}) {
        CAPTURE(shape.name);
        CAPTURE(name);
        const SynthModel model = few_layers(shape, name, layers);
        std::map<std::string, Json> files;
        for (const auto& [file, text] : synth_auxiliary_files(model)) files[file] = parse_json(file, text);
        const Json& config = files.at("config.json")["quantization_config"];
        CHECK(config["quant_method"] == name);
        const auto patterns = parse_patterns(config["ignore"].get<std::vector<std::string>>());
        std::vector<bool> used(patterns.size());
        for_each_module(model, [&](std::span<const SynthModule> modules) {
          for (const SynthModule& m : modules) {
            const bool listed = m.is_linear() && m.format == nullptr;
            CHECK_MESSAGE(any_matches(patterns, m.name()) == listed, m.name());
            for (size_t i = 0; i < patterns.size(); ++i) used[i] = used[i] || patterns[i].matches(m.name());
          }
        });
        for (size_t i = 0; i < patterns.size(); ++i) CHECK_MESSAGE(used[i], patterns[i].text());
      }
    }
  }
}

TEST_CASE("the configuration is what each dialect's loaders want") {
  const SynthModel model =
      make_synth_model({.shape = "tiny", .dialect = "modelopt", .layers = 2, .experts = 4, .vocab = 77});
  std::map<std::string, Json> files;
  for (const auto& [file, text] : synth_auxiliary_files(model)) files[file] = parse_json(file, text);
  CHECK(files.at("config.json")["vocab_size"] == 77);
  CHECK(files.at("config.json")["num_experts"] == 4);
  CHECK(files.at("config.json")["num_hidden_layers"] == 2);
  const Json& quantization = files.at("hf_quant_config.json")["quantization"];
  CHECK(quantization["group_size"] == 16);
  CHECK(quantization["kv_cache_quant_algo"].is_null());
  CHECK(quantization["exclude_modules"] == files.at("config.json")["quantization_config"]["ignore"]);
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    CHECK(files.count(name) == 1);
  }

  files.clear();
  const SynthModel other = make_synth_model(
      {.shape = "tiny", .dialect = "compressed-tensors", .layers = 2, .experts = 4, .vocab = 77});
  for (const auto& [file, text] : synth_auxiliary_files(other)) {
    files[file] = parse_json(file, text);
  }
  CHECK(files.count("hf_quant_config.json") == 0);
  const Json& config = files.at("config.json")["quantization_config"];
  CHECK(config["format"] == "nvfp4-pack-quantized");
  CHECK(config["config_groups"]["group_0"]["weights"]["strategy"] == "tensor_group");
}

}  // namespace synth_plan_test
