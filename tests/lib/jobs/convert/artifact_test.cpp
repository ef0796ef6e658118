#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "formats/error.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/manifest.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace artifact_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

Tensors sound(int layers = 1) {
  Tensors tensors;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string path = fmt::format("model.layers.{}.", layer);
    add_experts(tensors, path + "mlp.experts", random_experts(2, 16, 32, static_cast<unsigned>(layer)));
    add_bf16(tensors, path + "input_layernorm.weight", {32});
    add_modelopt(tensors, path + "self_attn.o_proj", random_matrix(16, 16, 5));
  }
  return tensors;
}

Json json_of(const fs::path& file) { return parse_json(file.string(), read_text(file)); }

/// config.json of the artifact of a sound checkpoint with that config.
Json converted_config(const std::string& config, const std::string& hf_quant_config = "", int layers = 1,
                      const OneRule& recipe = {}) {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound(layers)}, config);
  if (!hf_quant_config.empty()) write_text(scratch / "src/hf_quant_config.json", hf_quant_config);
  convert(scratch / "src", scratch / "out", recipe);
  CHECK(!fs::exists(scratch / "out/hf_quant_config.json"));
  return json_of(scratch / "out/config.json");
}

}  // namespace

TEST_CASE("config.json says what is true now and keeps the rest, in its order") {
  const Json config = converted_config(
      R"({"model_type": "qwen3_moe", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
          "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "eos_token_id": [1, 2], "name": "\u00e9"})");
  CHECK(config["quantization_config"].dump() ==
        R"({"quant_method":"twofour","layout":"v7","pattern":"2:4","modules":["model.layers.0.mlp.experts"],)"
        R"("base":{"quant_method":"modelopt","quant_algo":"NVFP4"}})");
  CHECK(config["model_type"] == "qwen3_moe");
  CHECK(config["rope_theta"].dump() == "1000000.0");
  CHECK(config["rms_norm_eps"].dump() == "1e-06");
  CHECK(config["eos_token_id"].dump() == "[1,2]");
  CHECK(config["name"] == "\u00e9");
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"model_type", "quantization_config", "rope_theta", "rms_norm_eps",
                                         "eos_token_id", "name"});
}

TEST_CASE("the base entry comes from hf_quant_config.json where config.json has none") {
  const std::string hf = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})";
  const Json config = converted_config(R"({"model_type": "qwen3_moe"})", hf);
  CHECK(config["quantization_config"]["base"] == parse_json("hf", hf));
  const Json both = converted_config(R"({"quantization_config": {"quant_method": "modelopt"}})", hf);
  CHECK(both["quantization_config"]["base"].dump() == R"({"quant_method":"modelopt"})");
  CHECK(converted_config("{}")["quantization_config"]["base"].is_null());
}

TEST_CASE("an entry within text_config or under its old name is moved to base, never left to contradict") {
  for (const char* key : {"quantization_config", "compression_config"}) {
    for (const bool nested : {false, true}) {
      const std::string entry = fmt::format(R"("{}": {{"quant_method": "compressed-tensors"}})", key);
      const Json config = converted_config(nested ? fmt::format(R"({{"text_config": {{"a": 1, {}}}}})", entry)
                                                  : "{" + entry + "}");
      CHECK(config["quantization_config"]["quant_method"] == "twofour");
      CHECK(config["quantization_config"]["base"]["quant_method"] == "compressed-tensors");
      CHECK(!config.contains("compression_config"));
      if (nested) CHECK(config["text_config"].dump() == R"({"a":1})");
    }
  }
}

TEST_CASE("an entry comes back where it stood, and a new one stands where the old one did") {
  const auto entry_at = [](const std::string& place) {
    const size_t dot = place.find('.');
    const std::string key = place.substr(dot == std::string::npos ? 0 : dot + 1);
    const std::string entry =
        fmt::format(R"("{}": {{"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "b": 2)", key);
    return dot == std::string::npos
               ? fmt::format(R"({{"text_config": {{"a": 1}}, {}}})", entry)
               : fmt::format(R"({{"{}": {{"a": 1, {}}}, "c": 3}})", place.substr(0, dot), entry);
  };
  const auto recipe = [](const std::string& layout, const std::string& dialect) {
    OneRule r;
    r.to = layout;
    r.dialect = dialect;
    return r;
  };
  for (const std::string place : {"quantization_config", "compression_config",
                                  "text_config.quantization_config", "text_config.compression_config",
                                  "llm_config.quantization_config", "language_config.compression_config"}) {
    CAPTURE(place);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {sound(1)}, entry_at(place));
    const bool nested = place.find('.') != std::string::npos;
    const std::string within = place.substr(0, place.find('.'));
    for (const std::string layout : {"v7", "g8"}) {
      CAPTURE(layout);
      convert(scratch / "src", scratch / layout, recipe(layout, ""));
      CHECK(json_of(scratch / layout / "config.json")["quantization_config"]["layout"] == layout);
      convert(scratch / layout, scratch / (layout + "-back"), recipe("nvfp4", "modelopt"));
      // Its members may stand in another order.
      const auto plain = [](const Json& json) { return nlohmann::json::parse(json.dump()); };
      CHECK(plain(json_of(scratch / (layout + "-back") / "config.json")) ==
            plain(json_of(scratch / "src/config.json")));
      convert(scratch / layout, scratch / (layout + "-other"), recipe("nvfp4", "compressed-tensors"));
      const Json other = json_of(scratch / (layout + "-other") / "config.json");
      const Json& holder = nested ? other[within] : other;
      CHECK(holder["quantization_config"]["quant_method"] == "compressed-tensors");
      CHECK(other.contains("quantization_config") == !nested);
      CHECK(!holder.contains("compression_config"));
      const ValidateReport report = validate_from(scratch / layout, scratch / (layout + "-other"));
      CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
    }
    convert(scratch / "src", scratch / "fp8", recipe("fp8", "compressed-tensors"));
    const Json fp8 = json_of(scratch / "fp8/config.json");
    CHECK(fp8.contains("quantization_config") == !nested);
    CHECK((nested ? fp8[within] : fp8)["quantization_config"]["format"] == "float-quantized");
    convert(scratch / "src", scratch / "bf16", recipe("bf16", ""));
    CHECK(read_text(scratch / "bf16/config.json").find("quant_method") == std::string::npos);
  }
}

TEST_CASE("entries that say nothing do not hide the one that does, and copies of it come back") {
  const std::string entry = R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  OneRule back;
  back.to = "nvfp4";
  back.dialect = "modelopt";
  for (const std::string& outer : {std::string("null"), std::string("{}"), entry}) {
    CAPTURE(outer);
    const Scratch scratch;
    write_checkpoint(
        scratch / "src", {sound()},
        fmt::format(R"({{"quantization_config": {}, "text_config": {{"quantization_config": {}}}}})", outer,
                    entry));
    convert(scratch / "src", scratch / "v7");
    const Json config = json_of(scratch / "v7/config.json");
    CHECK(config["quantization_config"]["base"] == parse_json("entry", entry));
    CHECK(config["text_config"].dump() == "{}");
    convert(scratch / "v7", scratch / "back", back);
    CHECK(json_of(scratch / "back/config.json").dump() == json_of(scratch / "src/config.json").dump());
  }
}

TEST_CASE("two entries that differ are refused where one must be kept") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()},
                   R"({"quantization_config": {"quant_method": "modelopt"},
                       "text_config": {"quantization_config": {"quant_method": "fp8"}}})");
  for (const std::string layout : {"v7", "g8", "nvfp4", "bf16"}) {
    CAPTURE(layout);
    OneRule recipe;
    recipe.to = layout;
    CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "out", recipe),
                         doctest::Contains("config.json: text_config.quantization_config: expected the "
                                           "quantization in quantization_config, found a different one"),
                         Error);
    CHECK(!fs::exists(scratch / "out"));
  }
}

TEST_CASE("an entry deeper than one config below the top, where loaders do not look, is refused") {
  const Scratch scratch;
  for (const std::string key : {"quantization_config", "compression_config"}) {
    write_checkpoint(
        scratch / "src", {sound()},
        fmt::format(R"({{"llm_config": {{"text_config": {{"{}": {{"quant_method": "fp8"}}}}}}}})", key));
    for (const std::string layout : {"v7", "nvfp4", "bf16"}) {
      CAPTURE(layout);
      OneRule recipe;
      recipe.to = layout;
      CHECK_THROWS_WITH_AS(
          convert(scratch / "src", scratch / "out", recipe),
          doctest::Contains(
              fmt::format("config.json: expected {} at its top or one config below, found one deeper", key)
                  .c_str()),
          Error);
      CHECK(!fs::exists(scratch / "out"));
    }
  }
}

TEST_CASE("modules are one glob where it names converted ones only, else one by one") {
  const auto modules = [](const OneRule& recipe) {
    return converted_config("{}", "", 3, recipe)["quantization_config"]["modules"].dump();
  };
  CHECK(modules({}) == R"(["model.layers.*.mlp.experts"])");
  OneRule some;
  some.selection.exclude = parse_patterns({"model.layers.1.mlp.experts"});
  CHECK(modules(some) == R"(["model.layers.0.mlp.experts","model.layers.2.mlp.experts"])");
  OneRule more;
  more.selection.also = parse_patterns({"*.o_proj"});
  CHECK(modules(more) == R"(["model.layers.*.mlp.experts","model.layers.*.self_attn.o_proj"])");
}

TEST_CASE("without config.json the artifact still gets one that names the layout") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()}, "");
  convert(scratch / "src", scratch / "out");
  CHECK(json_of(scratch / "out/config.json")["quantization_config"]["layout"] == "v7");
}

TEST_CASE("auxiliary files and sub-folders are copied; other weights, indexes, caches and git are not") {
  const Scratch scratch;
  const fs::path source = scratch / "src";
  const Tensors all = sound();
  write_checkpoint(source, {Tensors(all.begin(), all.begin() + 7), Tensors(all.begin() + 7, all.end())});
  const std::set<std::string> copied = {
      "tokenizer.json",       "generation_config.json", "chat_template.jinja",
      "modeling_x.py",        "assets/logo.png",        "assets/deep/er/file",
      "original/params.json", "vocab.binary",           ".hidden"};
  const std::set<std::string> left = {"pytorch_model.bin",
                                      "model.gguf",
                                      "consolidated.00.pth",
                                      "x.pt",
                                      "x.onnx",
                                      "flax.msgpack",
                                      "tf_model.h5",
                                      "original/a.bin",
                                      ".cache/x.txt",
                                      ".git/config",
                                      "assets/.cache/y",
                                      "assets/.git/HEAD",
                                      "old.safetensors.index.json",
                                      "stale-00009.safetensors"};
  for (const auto* names : {&copied, &left}) {
    for (const std::string& name : *names) {
      fs::create_directories((source / name).parent_path());
      write_text(source / name, "text of " + name);
    }
  }
  fs::create_directory_symlink("assets", source / "assets-too");
  fs::create_symlink("assets/logo.png", source / "linked.png");
  const ConvertResult result = convert(source, scratch / "out");
  const auto files = read_tree(scratch / "out");
  std::set<std::string> expected = copied;
  expected.insert({"linked.png", "config.json", "twofour.json", "model.safetensors.index.json",
                   "model-00001-of-00001.safetensors"});
  std::set<std::string> found;
  for (const auto& [name, text] : files) found.insert(name);
  CHECK(found == expected);
  for (const std::string& name : copied) CHECK(files.at(name) == "text of " + name);
  CHECK(files.at("linked.png") == "text of assets/logo.png");
  CHECK(!fs::is_symlink(scratch / "out/linked.png"));
  CHECK(findings_of(result.findings, "other-weights").size() == 8);
  const auto stale = findings_of(result.findings, "unindexed-file");
  REQUIRE(stale.size() == 1);
  CHECK(stale[0].where == "stale-00009.safetensors");
  CHECK(stale[0].severity == Severity::kWarning);
  REQUIRE(findings_of(result.findings, "not-a-file").size() == 1);
  CHECK(findings_of(result.findings, "not-a-file")[0].where == "assets-too");
}

TEST_CASE("the manifest holds the hash of every tensor, stored global scales and the recipe") {
  const Scratch scratch;
  Tensors tensors;
  const ExpertSet experts = random_experts(2, 16, 32);
  for (size_t e = 0; e < 2; ++e) {
    const std::string expert = fmt::format("{}.{}.", kBlock, e);
    add_compressed_tensors(tensors, expert + "gate_proj", experts.gate[e]);  // 0.25, stored as 4
    add_modelopt(tensors, expert + "up_proj", experts.up[e]);
    add_modelopt(tensors, expert + "down_proj", experts.down[e]);
  }
  add_bf16(tensors, "model.norm.weight", {32});
  write_checkpoint(scratch / "src", {tensors});
  const ConvertResult result = convert(scratch / "src", scratch / "out");
  const Json manifest = json_of(scratch / "out/twofour.json");
  CHECK(manifest["tool"].dump() ==
        fmt::format(R"({{"name":"twofour","version":"{}","commit":"{}"}})", version(), version_commit()));
  CHECK(
      manifest["recipe"].dump() ==
      R"({"rules":[{"to":"v7","include":[],"exclude":[],"also":[],"fold":"larger"}],"max_shard_size":5000000000})");

  std::map<std::string, std::string> hashes;
  for (const Json& module : manifest["modules"]) {
    for (const Json& t : module["tensors"])
      hashes[t["name"].get<std::string>()] = t["xxh3_128"].get<std::string>();
  }
  for (const Json& t : manifest["copied"])
    hashes[t["name"].get<std::string>()] = t["xxh3_128"].get<std::string>();
  const ReadTensors ours = read_tensors(scratch / "out");
  REQUIRE(hashes.size() == ours.size());
  for (const auto& [name, tensor] : ours) CHECK(hashes.at(name) == hash_bytes(tensor.bytes).hex());

  for (const Json& module : manifest["modules"]) {
    if (module["name"] != kBlock + ".w13") continue;
    CHECK(module["shape"].dump() == "[2,32,32]");
    CHECK(module["gated"] == true);
    REQUIRE(module["sources"].size() == 4);
    const Json& gate = module["sources"][2];  // of expert 1
    CHECK(gate["module"] == kBlock + ".1.gate_proj");
    CHECK(gate["global_scale_bits"] == "40800000");                  // 4.0f
    CHECK(module["sources"][3]["global_scale_bits"] == "3e800000");  // 0.25f
    CHECK(gate["codes_xxh3_128"] == hash_bytes(experts.gate[1].codes).hex());
    CHECK(gate["scales_xxh3_128"] == hash_bytes(experts.gate[1].scales).hex());
  }
}

TEST_CASE("hashes are XXH3-128 as xxhsum prints it") {
  // From xxHash's own test vectors: the empty input, seed 0.
  CHECK(hash_bytes({}).hex() == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("index, headers and files agree, and nothing of the run is left behind") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound(3)});
  OneRule recipe;
  recipe.max_shard_size = 2000;
  const ConvertResult result = convert(scratch / "src", scratch / "out", recipe);
  uint64_t data = 0, files = 0;
  const Checkpoint c = Checkpoint::open(scratch / "out");
  CHECK(c.shards().size() > 2);
  for (const Shard& s : c.shards()) {
    CHECK(s.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"twofour.layout", "v7"}});
    CHECK(s.data_begin % 8 == 0);
    data += s.data_bytes();
    files += s.file.size();
  }
  CHECK(result.bytes_written == files);
  CHECK(result.bytes_verified == data);
  const Json index = json_of(scratch / "out" / std::string(kIndexName));
  CHECK(index["metadata"]["total_size"] == data);
  CHECK(index["weight_map"].size() == c.tensors().size());
  for (size_t i = 0; i < c.tensors().size(); ++i)
    CHECK(index["weight_map"][c.tensors()[i].name] == c.shard_of(i).name);
  CHECK(c.findings().empty());
  for (const auto& [name, text] : read_tree(scratch / "out")) CHECK_MESSAGE(name[0] != '.', name);
  for (const auto& [name, text] : read_tree(scratch / "out")) {
    CHECK_MESSAGE(text.find(scratch.path.string()) == std::string::npos, name);
  }
}

TEST_CASE("one safetensors file is a checkpoint, too") {
  const Scratch scratch;
  fs::create_directory(scratch / "place");
  write_safetensors(scratch / "place/model.safetensors", sound());
  convert(scratch / "place/model.safetensors", scratch / "out");
  CHECK(validate_from(scratch / "place/model.safetensors", scratch / "out").differences.empty());
  CHECK(read_tensors(scratch / "out").count(kBlock + ".w13_comp"));
}

TEST_CASE("an empty tensor passes through") {
  const Scratch scratch;
  Tensors tensors = sound();
  tensors.push_back({"model.empty", DType::kF32, {0, 4}, {}});
  write_checkpoint(scratch / "src", {tensors});
  for (const uint64_t shard : {uint64_t{1}, uint64_t{5'000'000}}) {
    OneRule recipe;
    recipe.max_shard_size = shard;
    const fs::path out = scratch / fmt::format("{}", shard);
    convert(scratch / "src", out, recipe);
    CHECK(read_tensors(out).at("model.empty").shape == std::vector<int64_t>{0, 4});
    CHECK(validate_from(scratch / "src", out).differences.empty());
  }
}

}  // namespace artifact_test
