#include <doctest/doctest.h>

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/half.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace nvfp4_dialect_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kGoldens[] = {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"};

fs::path golden(const std::string& name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

OneRule to_nvfp4(const std::string& dialect = "") {
  OneRule recipe;
  recipe.to = "nvfp4";
  recipe.dialect = dialect;
  return recipe;
}

void check_proven(const fs::path& source, const fs::path& out) {
  const ValidateReport report = validate_from(source, out);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.source_tensors == read_tensors(source).size());
}

float float_of(const ReadTensor& t) { return t.as<float>().at(0); }

/// `name` with the suffix `from` replaced by `to`; empty where it ends otherwise.
std::string renamed(const std::string& name, const std::string& from, const std::string& to) {
  return name.ends_with(from) ? name.substr(0, name.size() - from.size()) + to : "";
}

Json config_of(const fs::path& path) { return parse_json("config.json", read_text(path / "config.json")); }

TensorData scalar(const std::string& name, DType dtype, const std::vector<int64_t>& shape, float value) {
  TensorData t{name, dtype, shape, std::vector<uint8_t>(dtype == DType::kF32 ? 4 : 2)};
  const uint16_t half = bf16_from_float(value);
  std::memcpy(t.bytes.data(), dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
              t.bytes.size());
  return t;
}

std::string refusal(const fs::path& source, const fs::path& out, const OneRule& recipe) {
  return message_of([&] { convert(source, out, recipe); });
}

}  // namespace

TEST_CASE("ModelOpt becomes compressed-tensors: same codes and block scales, reciprocals of the others") {
  for (const char* name : {"modelopt-qwen3", "modelopt-mixtral-uneven"}) {
    CAPTURE(name);
    const Scratch scratch;
    convert(golden(name), scratch / "out", to_nvfp4());
    const ReadTensors before = read_tensors(golden(name)), after = read_tensors(scratch / "out");
    CHECK(before.size() == after.size());
    size_t modules = 0;
    for (const auto& [tensor, value] : before) {
      CAPTURE(tensor);
      if (value.dtype == DType::kU8) {
        CHECK((after.at(renamed(tensor, ".weight", ".weight_packed")) == value));
        ++modules;
      } else if (value.dtype == DType::kF32) {
        const std::string global = renamed(tensor, ".weight_scale_2", ".weight_global_scale"),
                          input = renamed(tensor, ".input_scale", ".input_global_scale");
        const ReadTensor& to = after.at(global + input);
        CHECK(to.shape == std::vector<int64_t>{1});
        CHECK(float_of(to) == 1.0f / float_of(value));
      } else {
        CHECK((after.at(tensor) == value));
      }
    }
    CHECK(modules >= 7);
    const Json entry = config_of(scratch / "out")["quantization_config"];
    CHECK(entry["quant_method"] == "compressed-tensors");
    CHECK(entry["format"] == "nvfp4-pack-quantized");
    CHECK(entry["config_groups"]["group_0"]["input_activations"]["dynamic"] == "local");
    CHECK(entry["ignore"][0] == "lm_head");
    CHECK(entry["ignore"][1].get<std::string>().starts_with("re:.*\\."));
    CHECK(entry["kv_cache_scheme"].is_null());
    CHECK(!fs::exists(scratch / "out/hf_quant_config.json"));
    check_proven(golden(name), scratch / "out");
  }
}

TEST_CASE("compressed-tensors becomes ModelOpt, with the file that its loaders want") {
  const fs::path source = golden("compressed-tensors-qwen3");
  const Scratch scratch;
  convert(source, scratch / "out", to_nvfp4("modelopt"));
  const ReadTensors before = read_tensors(source), after = read_tensors(scratch / "out");
  for (const auto& [tensor, value] : before) {
    if (value.dtype != DType::kF32) continue;
    CAPTURE(tensor);
    const ReadTensor& to = after.at(renamed(tensor, ".weight_global_scale", ".weight_scale_2") +
                                    renamed(tensor, ".input_global_scale", ".input_scale"));
    CHECK(to.shape.empty());
    CHECK(float_of(to) == 1.0f / float_of(value));
  }
  const Json file = parse_json("hf", read_text(scratch / "out/hf_quant_config.json"));
  CHECK(file["producer"]["name"] == "modelopt");
  CHECK(file["quantization"] == Json{{"quant_algo", "NVFP4"},
                                     {"kv_cache_quant_algo", nullptr},
                                     {"group_size", 16},
                                     {"exclude_modules", {"lm_head", "*mlp.gate"}}});
  const Json entry = config_of(scratch / "out")["quantization_config"];
  CHECK(entry["quant_method"] == "modelopt");
  CHECK(entry["ignore"] == file["quantization"]["exclude_modules"]);
  check_proven(source, scratch / "out");
}

TEST_CASE("there and back is the source byte for byte, for twofour.json remembers the scales") {
  for (const char* name : kGoldens) {
    CAPTURE(name);
    const Scratch scratch;
    convert(golden(name), scratch / "there", to_nvfp4());
    convert(scratch / "there", scratch / "back", to_nvfp4());
    const ReadTensors before = read_tensors(golden(name)), after = read_tensors(scratch / "back");
    REQUIRE(before.size() == after.size());
    for (const auto& [tensor, value] : before) {
      CAPTURE(tensor);
      CHECK((after.at(tensor) == value));
    }
    check_proven(scratch / "there", scratch / "back");
  }
}

TEST_CASE("there and back gives ModelOpt's scalars the shapes that they had") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "model.layers.0.mlp.up_proj", random_matrix(16, 32, 1), {1});
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", random_matrix(32, 16, 2), {});
  tensors.push_back(scalar("model.layers.0.mlp.up_proj.input_scale", DType::kF32, {1}, 0.25f));
  write_checkpoint(scratch / "src", {tensors}, "{}");
  convert(scratch / "src", scratch / "there", to_nvfp4("compressed-tensors"));
  convert(scratch / "there", scratch / "back", to_nvfp4("modelopt"));
  const ReadTensors from = read_tensors(scratch / "src"), back = read_tensors(scratch / "back");
  REQUIRE(from.size() == back.size());
  for (const auto& [name, tensor] : from) {
    CAPTURE(name);
    CHECK(back.at(name).shape == tensor.shape);
    CHECK((back.at(name).bytes == tensor.bytes));
  }
}

TEST_CASE("scales that were changed since are not what twofour.json remembers") {
  const std::string key = "model.layers.0.self_attn.k_proj", value = "model.layers.0.self_attn.v_proj";
  const float g = 7.0f;
  REQUIRE(1.0f / (1.0f / g) != g);
  const Scratch scratch;
  Tensors tensors;
  for (const std::string& module : {key, value}) {
    add_modelopt(tensors, module, random_matrix(16, 32, 1, g));
    tensors.push_back(scalar(module + ".input_scale", DType::kF32, {}, g));
  }
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "there", to_nvfp4());
  const fs::path file = scratch / "there/model-00001-of-00001.safetensors";
  for (const std::string& name : {key + ".weight_global_scale", value + ".input_global_scale"}) {
    const Checkpoint c = Checkpoint::open(scratch / "there");
    const size_t i = c.find(name).value();
    flip_bit(file, c.shard_of(i).data_begin + c.tensors()[i].begin, 3);
  }
  const ReadTensors there = read_tensors(scratch / "there");
  convert(scratch / "there", scratch / "back", to_nvfp4());
  const ReadTensors back = read_tensors(scratch / "back");
  CHECK(float_of(back.at(key + ".weight_scale_2")) ==
        1.0f / float_of(there.at(key + ".weight_global_scale")));
  CHECK(float_of(back.at(key + ".weight_scale_2")) != 1.0f / (1.0f / g));
  CHECK(float_of(back.at(key + ".input_scale")) == g);
  CHECK(float_of(back.at(value + ".weight_scale_2")) == g);
  CHECK(float_of(back.at(value + ".input_scale")) ==
        1.0f / float_of(there.at(value + ".input_global_scale")));
  check_proven(scratch / "there", scratch / "back");
}

TEST_CASE("there and back without twofour.json is the source but for the last bit of some reciprocals") {
  for (const char* name : kGoldens) {
    CAPTURE(name);
    const Scratch scratch;
    convert(golden(name), scratch / "there", to_nvfp4());
    fs::remove(scratch / "there" / kManifestName);
    convert(scratch / "there", scratch / "back", to_nvfp4());
    const ReadTensors before = read_tensors(golden(name)), after = read_tensors(scratch / "back");
    REQUIRE(before.size() == after.size());
    for (const auto& [tensor, value] : before) {
      CAPTURE(tensor);
      ReadTensor expected = value;
      if (value.dtype == DType::kF32) {
        const float twice = 1.0f / (1.0f / float_of(value));
        std::memcpy(expected.bytes.data(), &twice, sizeof(twice));
        CHECK(std::abs(std::bit_cast<int32_t>(twice) - std::bit_cast<int32_t>(float_of(value))) <= 1);
      }
      CHECK((after.at(tensor) == expected));
    }
    check_proven(scratch / "there", scratch / "back");
  }
}

TEST_CASE("1/(1/G) is G or its neighbour: of a binade of floats about one in six moves, by one last bit") {
  uint64_t moved = 0;
  constexpr uint32_t kBinade = 1u << 23;
  for (uint32_t i = 0; i < kBinade; ++i) {
    const uint32_t bits = 0x42000000u + i;  // [32, 64): a reciprocal's error depends on the mantissa alone
    const uint32_t twice = std::bit_cast<uint32_t>(1.0f / (1.0f / std::bit_cast<float>(bits)));
    moved += twice != bits;
    if (twice + 1 - bits > 2) FAIL(bits);
  }
  const double share = static_cast<double>(moved) / kBinade;
  CHECK(share > 0.13);
  CHECK(share < 0.18);
}

TEST_CASE("what is not quantized is named where the source names neither that nor what is") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "a", random_matrix(16, 32, 1));
  add_bf16(tensors, "b.weight", {16, 16});
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "ct", to_nvfp4());
  CHECK(config_of(scratch / "ct")["quantization_config"]["ignore"] == Json{"b"});
  add_bf16(tensors, "c.weight", {16, 16});
  write_checkpoint(
      scratch / "layers", {tensors},
      R"({"quantization_config": {"ignore": ["b"], "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}})");
  convert(scratch / "layers", scratch / "named", to_nvfp4());
  CHECK(config_of(scratch / "named")["quantization_config"]["ignore"] == Json{"b", "c"});
}

TEST_CASE("an input scale is refused if its reciprocal, which is stored, would not come back as a number") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "a", random_matrix(16, 32, 1));
  tensors.push_back(scalar("a.input_scale", DType::kF32, {}, std::numeric_limits<float>::max()));
  write_checkpoint(scratch / "src", {tensors});
  CHECK(refusal(scratch / "src", scratch / "out", to_nvfp4())
            .find("a.input_scale: expected a positive finite input scale") != std::string::npos);
}

TEST_CASE("KV scales keep their names and are F32 in ModelOpt, BF16 in compressed-tensors") {
  const std::string attention = "model.layers.0.self_attn";
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, attention + ".k_proj", random_matrix(16, 32, 1));
  add_modelopt(tensors, attention + ".v_proj", random_matrix(16, 32, 2));
  tensors.push_back(scalar(attention + ".k_proj.k_scale", DType::kF32, {}, 0.1f));
  tensors.push_back(scalar(attention + ".v_proj.v_scale", DType::kF32, {}, 0.25f));
  write_checkpoint(scratch / "src", {tensors});
  write_text(scratch / "src/hf_quant_config.json",
             R"({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                 "exclude_modules": ["lm_head", "model.layers.1*"]}})");
  convert(scratch / "src", scratch / "ct", to_nvfp4());
  const ReadTensors ct = read_tensors(scratch / "ct");
  CHECK(ct.at(attention + ".k_proj.k_scale").dtype == DType::kBF16);
  CHECK(ct.at(attention + ".k_proj.k_scale").shape.empty());
  CHECK(ct.at(attention + ".k_proj.k_scale").as<uint16_t>()[0] == bf16_from_float(0.1f));
  const Json entry = config_of(scratch / "ct")["quantization_config"];
  CHECK(entry["kv_cache_scheme"]["num_bits"] == 8);
  CHECK(entry["ignore"] == Json{"lm_head", "re:model\\.layers\\.1.*$"});
  CHECK(entry["config_groups"]["group_0"]["input_activations"].is_null());  // there are no input scales
  check_proven(scratch / "src", scratch / "ct");

  convert(scratch / "ct", scratch / "back", to_nvfp4());
  const ReadTensors back = read_tensors(scratch / "back");
  CHECK(float_of(back.at(attention + ".k_proj.k_scale")) == bf16_to_float(bf16_from_float(0.1f)));
  CHECK(float_of(back.at(attention + ".v_proj.v_scale")) == 0.25f);
  CHECK(back.at(attention + ".v_proj.v_scale").shape.empty());
  const Json file = parse_json("hf", read_text(scratch / "back/hf_quant_config.json"));
  CHECK(file["quantization"]["kv_cache_quant_algo"] == "FP8");
  CHECK(file["quantization"]["quant_algo"] == "W4A16_NVFP4");
  CHECK(file["quantization"]["exclude_modules"] == Json{"lm_head", "model.layers.1*"});
  check_proven(scratch / "ct", scratch / "back");
}

TEST_CASE("scales of the KV cache for each head are refused, whether the config says so or not") {
  const std::string attention = "model.layers.0.self_attn";
  const Scratch scratch;
  Tensors tensors;
  add_compressed_tensors(tensors, attention + ".k_proj", random_matrix(16, 32, 1));
  tensors.push_back({attention + ".k_scale", DType::kBF16, {2}, {0x80, 0x3F, 0, 0x40}});
  const Json scheme = {{"num_bits", 8}, {"type", "float"}, {"strategy", "attn_head"}};
  const Json entry = {{"quant_method", "compressed-tensors"}, {"kv_cache_scheme", scheme}};
  write_checkpoint(scratch / "said", {tensors}, Json{{"quantization_config", entry}}.dump());
  write_checkpoint(scratch / "unsaid", {tensors}, "{}");
  CHECK(refusal(scratch / "said", scratch / "out", to_nvfp4())
            .find("kv_cache_scheme.strategy: expected tensor") != std::string::npos);
  CHECK(refusal(scratch / "unsaid", scratch / "out", to_nvfp4()) ==
        "model.safetensors: " + attention +
            ".k_scale: expected one scale of the KV cache, which both dialects have, found BF16 [2]");
}

TEST_CASE("a pattern that cannot be followed is refused with the file and the key that it stands under") {
  const Scratch scratch;
  Tensors tensors;
  add_compressed_tensors(tensors, "a", random_matrix(16, 32, 1));
  const std::string entry = R"({"quantization_config": {"ignore": ["re:.*q_proj\\Z"]}})";
  write_checkpoint(scratch / "src", {tensors}, entry);
  write_checkpoint(scratch / "nested", {tensors}, "{\"text_config\": " + entry + "}");
  const std::string pattern = "ignore: pattern 're:.*q_proj\\Z': expected ^ or $, found \\A or \\Z";
  CHECK(refusal(scratch / "src", scratch / "out", to_nvfp4()) ==
        (scratch / "src/config.json").string() + ": quantization_config." + pattern);
  CHECK(refusal(scratch / "nested", scratch / "out", to_nvfp4()) ==
        (scratch / "nested/config.json").string() + ": text_config.quantization_config." + pattern);
}

TEST_CASE("KV scales of compressed-tensors come back as they were") {
  const std::string attention = "model.layers.0.self_attn";
  const Scratch scratch;
  Nvfp4Matrix matrix = random_matrix(16, 32, 1);
  matrix.global = 0.25f;
  Tensors tensors;
  add_compressed_tensors(tensors, attention + ".k_proj", matrix);
  tensors.push_back({attention + ".k_scale", DType::kBF16, {1}, {0xCD, 0x3D}});
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "modelopt", to_nvfp4());
  convert(scratch / "modelopt", scratch / "back", to_nvfp4());
  const ReadTensor between = read_tensors(scratch / "modelopt").at(attention + ".k_scale");
  CHECK(between.dtype == DType::kF32);
  CHECK(between.as<uint32_t>()[0] == 0x3DCD0000u);
  const ReadTensor back = read_tensors(scratch / "back").at(attention + ".k_scale");
  CHECK(back.dtype == DType::kBF16);
  CHECK(back.as<uint16_t>()[0] == 0x3DCD);
}

TEST_CASE("FP8 activations have no words in compressed-tensors") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "a", random_matrix(16, 32, 1));
  write_checkpoint(
      scratch / "src", {tensors},
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"}})");
  CHECK(refusal(scratch / "src", scratch / "out", to_nvfp4()) ==
        "quant_algo: expected NVFP4 or W4A16_NVFP4, which both dialects have, found W4A8_NVFP4_FP8");
}

TEST_CASE("what the other dialect cannot hold is refused") {
  const Scratch scratch;
  const fs::path out = scratch / "out";
  CHECK(refusal(golden("modelopt-qwen3"), out, to_nvfp4("awq")) ==
        "--dialect: expected one of modelopt, compressed-tensors, deepseek-v4, found 'awq'");
  OneRule some = to_nvfp4();
  some.selection.exclude = parse_patterns({"*o_proj"});
  CHECK(refusal(golden("modelopt-qwen3"), out, some) ==
        "--to nvfp4: expected all 13 NVFP4 modules, which one configuration describes, found 12 chosen");

  Tensors stack;
  add_stack(stack, "model.layers.0.mlp.experts.down_proj", {random_matrix(16, 32, 1)}, true, {});
  write_checkpoint(scratch / "stack", {stack});
  CHECK(
      refusal(scratch / "stack", out, to_nvfp4())
          .starts_with("model.layers.0.mlp.experts.down_proj: expected every expert in tensors of its own"));

  Tensors mixed;
  add_modelopt(mixed, "a", random_matrix(16, 32, 1));
  mixed.push_back({"b.weight", DType::kF8E4M3, {2, 2}, {0, 0, 0, 0}});
  mixed.push_back(scalar("a.input_scale", DType::kF32, {}, 0.0f));
  mixed.push_back(scalar("a.pre_quant_scale", DType::kBF16, {1}, 1.0f));
  write_checkpoint(scratch / "mixed", {mixed});
  const std::string message = refusal(scratch / "mixed", out, to_nvfp4());
  CHECK(message.find("a.input_scale: expected a positive finite input scale with a positive finite "
                     "reciprocal, found 0") != std::string::npos);
  CHECK(message.find("b.weight: expected FP8 weights with") != std::string::npos);
  CHECK(message.find("a.pre_quant_scale: expected weights that consist of values and scales only") !=
        std::string::npos);
  CHECK(!fs::exists(out));
}

TEST_CASE("global scales without a reciprocal are refused, of a checkpoint and of an artifact") {
  const std::string mlp = "model.layers.0.mlp";
  const Scratch scratch;
  Tensors tensors;
  for (const char* leaf : {".gate_proj", ".up_proj", ".down_proj"})
    add_modelopt(tensors, mlp + leaf, random_matrix(16, 16, 1, 2e-39f));
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "v7");
  for (const char* from : {"src", "v7"}) {
    const std::string message = refusal(scratch / from, scratch / "out", to_nvfp4("compressed-tensors"));
    CHECK(contains(message, mlp + ".down_proj.weight_scale_2: expected a positive finite global scale that "
                                  "has a reciprocal, found 2e-39"));
    CHECK(!fs::exists(scratch / "out"));
  }
}

TEST_CASE("another dialect is the same for any number of jobs, and a flipped bit in it is found and named") {
  const Scratch scratch;
  convert(golden("modelopt-qwen3"), scratch / "one", to_nvfp4());
  ConvertOptions options;
  options.jobs = 4;
  convert(golden("modelopt-qwen3"), scratch / "four", to_nvfp4(), options);
  CHECK((read_tree(scratch / "one") == read_tree(scratch / "four")));
  const Checkpoint c = Checkpoint::open(scratch / "four");
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    const uint64_t at = c.shard_of(i).data_begin + t.begin + t.bytes() / 2;
    flip_bit(c.shard_of(i).file.path(), at, 1);
    const auto found =
        findings_of(validate_from(golden("modelopt-qwen3"), scratch / "four").differences, "bytes");
    REQUIRE_MESSAGE(found.size() == 1, t.name);
    CHECK(found[0].where == t.name);
    flip_bit(c.shard_of(i).file.path(), at, 1);
  }
}

TEST_CASE("Quark's NVFP4 goes into both dialects, and through layouts back to its own bytes") {
  const Scratch scratch;
  ReadTensors source = read_tensors(golden("modelopt-qwen3"));
  Tensors tensors;
  for (auto& [name, t] : source) {
    const std::string input = renamed(name, ".input_scale", ".input_scale_2");
    tensors.push_back({input.empty() ? name : input, t.dtype, t.shape, t.bytes});
  }
  Json config = config_of(golden("modelopt-qwen3"));
  config["quantization_config"] = {{"quant_method", "quark"}, {"exclude", {"lm_head"}}};
  write_checkpoint(scratch / "src", {tensors}, config.dump());
  convert(scratch / "src", scratch / "modelopt", to_nvfp4("modelopt"));
  check_proven(scratch / "src", scratch / "modelopt");
  CHECK((read_tensors(scratch / "modelopt") == source));
  CHECK(config_of(scratch / "modelopt")["quantization_config"]["quant_method"] == "modelopt");
  convert(scratch / "src", scratch / "ct", to_nvfp4("compressed-tensors"));
  check_proven(scratch / "src", scratch / "ct");
  convert(golden("modelopt-qwen3"), scratch / "expected", to_nvfp4("compressed-tensors"));
  CHECK((read_tensors(scratch / "ct") == read_tensors(scratch / "expected")));
  OneRule g8;
  g8.to = "g8";
  convert(scratch / "src", scratch / "g8", g8);
  check_proven(scratch / "src", scratch / "g8");
  convert(scratch / "g8", scratch / "back", to_nvfp4());
  CHECK((read_tensors(scratch / "back") == read_tensors(scratch / "src")));
  CHECK(config_of(scratch / "back")["quantization_config"]["quant_method"] == "quark");
  // Without input scales they become ModelOpt's, which has words for that.
  OneRule none;
  none.to = "keep";
  none.input_scale = "none";
  convert(scratch / "src", scratch / "none", none);
  for (const auto& [name, t] : read_tensors(scratch / "none")) CHECK(name.find("input_scale") == name.npos);
  CHECK(config_of(scratch / "none")["quantization_config"]["quant_algo"] == "W4A16_NVFP4");
}

}  // namespace nvfp4_dialect_test
