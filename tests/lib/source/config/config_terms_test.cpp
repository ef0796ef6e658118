#include "lib/source/config/config_terms.h"

#include <doctest/doctest.h>

#include "lib/base/io/file.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_int4.h"

namespace config_terms_test {

using namespace twofour;

namespace {

/// The places that say it, with spaces between them.
std::string places(const std::string& config, const std::string& hf_quant_config = "null",
                   std::span<const TensorInfo> tensors = {}) {
  std::string all;
  for (const ConfigTerm& term :
       find_config_terms(parse_json("config", config), parse_json("config", hf_quant_config), tensors)) {
    all += (all.empty() ? "" : " ") + term.file + ":" + term.key;
  }
  return all;
}

std::string entry(const std::string& words) { return R"({"quantization_config": {)" + words + "}}"; }

constexpr const char* kHadamard = R"({"config_groups": {"R1": {"type": "hadamard"}}})";

}  // namespace

TEST_CASE("transforms are found wherever a configuration has them") {
  const std::string transform = std::string(R"("transform_config": )") + kHadamard;
  CHECK(places(entry(transform)) == "config.json:quantization_config.transform_config");
  CHECK(places(entry(R"("base": {)" + transform + "}")) ==
        "config.json:quantization_config.base.transform_config");
  CHECK(places(entry(R"("config_groups": {"a": {"weights": {)" + transform + "}}}")) ==
        "config.json:quantization_config.config_groups.a.weights.transform_config");
  CHECK(places("{" + transform + "}") == "config.json:transform_config");
  CHECK(places(R"({"compression_config": {)" + transform + "}}") ==
        "config.json:compression_config.transform_config");
  CHECK(places(R"({"text_config": {"quantization_config": {)" + transform + "}}}") ==
        "config.json:text_config.quantization_config.transform_config");
  CHECK(places(entry(R"("quant_method": "modelopt")"), R"({"quantization": {)" + transform + "}}") ==
        "hf_quant_config.json:quantization.transform_config");
  const auto found = find_config_terms(parse_json("config", entry(transform)), Json(), {});
  CHECK(contains(found[0].problem, "expected none, found {\"config_groups\":{\"R1\":"));
}

TEST_CASE("rotations are found by the words of each producer") {
  CHECK(places(entry(R"("rotation_config": {"algorithm": "spinquant", "r1": true})")) ==
        "config.json:quantization_config.rotation_config");
  CHECK(places(entry(R"("quant_method": "fp_quant", "hadamard_group_size": 32)")) ==
        "config.json:quantization_config.hadamard_group_size");
  CHECK(places(entry(R"("quant_method": "higgs", "hadamard_size": 512)")) ==
        "config.json:quantization_config.hadamard_size");
  const auto quark = [](const std::string& step) {
    return !places(entry(R"("quant_method": "quark", "algo_config": [{"name": "awq"}, )" + step + "]"))
                .empty();
  };
  CHECK(quark(R"({"name": "rotation", "r1": true, "r2": true, "r3": true, "r4": true})"));
  CHECK(quark(R"({"name": "rotation", "r1": true, "r3": false, "r4": true})"));
  CHECK(quark(R"({"name": "rotation", "r1": false, "r2": false, "r3": false, "r4": true})"));
  CHECK(quark(R"({"name": "rotation", "r1": true, "r3": false})"));
  CHECK(quark(R"({"name": "quarot"})"));
  CHECK(quark(R"({"name": "rotation", "r1": true, "r3": false, "r4": false, "online_r1_rotation": true})"));
  CHECK(quark(R"({"name": "rotation", "r3": false, "r4": false, "online_config": {"shared_parallel": false,
      "online_rotation_layers": ["model.layers.0.mlp.up_proj"]}})"));
  CHECK(quark(R"({"name": "rotation", "r3": false, "r4": false,
      "online_config": {"online_rotation_layers": null, "use_input_prescale": true}})"));
  CHECK(!quark(R"({"name": "rotation", "r1": true, "r3": false, "r4": false, "online_r1_rotation": null,
      "online_config": {"shared_parallel": true, "online_rotation_layers": [], "use_input_prescale": false}})"));
  // What is turned back by other weights changes nothing, nor what turns queries and keys.
  CHECK(!quark(R"({"name": "rotation", "r1": true, "r2": true, "r3": true, "r4": false})"));
  CHECK(!quark(R"({"name": "rotation", "r1": false, "r2": false, "r3": false, "r4": false})"));
  CHECK(!quark(R"({"name": "rotation", "r1": true, "r2": true, "r3": false, "r4": false})"));
  CHECK(!quark(R"({"name": "smooth", "alpha": 0.5})"));
  CHECK(!places(entry(R"("quant_method": "quark", "pre_quant_opt_config": {"name": "rotation", "r1": true})"))
             .empty());
}

TEST_CASE("settings that name an arrangement of bytes are found wherever a configuration has them") {
  const auto is_found = [](const std::string& words) { return !places(entry(words)).empty(); };
  for (const char* words :
       {R"("scale_layout": "swizzled")",
        R"("is_marlin_format": true)",
        R"("is_marlin_24_format": true)",
        R"("is_bitblas_format": true)",
        R"("is_sf_swizzled": true)",
        R"("isScaleSwizzled": 1)",
        R"("weight_layout": "col_major")",
        R"("nibble_order": "high_first")",
        R"("byteOrder": "big")",
        R"("interleave": [2, 4])",
        R"("is_k_major": true)",
        R"("tile_size": 16)",
        R"("weights_transposed": true)",
        R"("int4_packing_format": "tile_packed_to_4d")",
        R"("padding_strategy": "row")",
        R"("repacked": "machete")",
        R"("scale_format": "swizzled_128x4")",
        R"("weight_storage": "interleaved")",
        R"("pack_dtype": "int8")",
        R"("packing_format": "marlin")",
        R"("pack_method": "columns")",
        R"("preshuffled": true)",
        R"("layout": {"_type": "TensorCoreTiledLayout", "_data": {"inner_k_tiles": 8}})",
        R"("quant_type": {"default": {"_type": "X", "_data": {"layout": {"_type": "MarlinSparseLayout"}}}})"})
    CHECK_MESSAGE(is_found(words), std::string(words));
  for (const char* words :
       {R"("scale_layout": "linear")",
        R"("scale_layout": null)",
        R"("is_marlin_format": false)",
        R"("weight_layout": "row_major")",
        R"("interleave": [])",
        R"("is_sf_swizzled": "false")",
        R"("layout": {"_type": "PlainLayout", "_data": {}, "_version": 1})",
        R"("pack_dtype": "int32")",
        R"("packing_format": "auto_round:auto_gptq")",
        R"("packing_format": "auto_round:llm_compressor")",
        R"("meta": {"pack_order": "x", "packer": "gptqmodel", "pack_impl": "cpu"})",
        R"("pack_impl": "cpu")",
        R"("export": {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []})",
        R"("backend": "gptq:marlin")",
        R"("use_marlin": true)",
        R"("dataset": "tiled")",
        R"("desc_act": true)",
        R"("model_name_or_path": "./marlin")",
        R"("checkpoint_format": "gptq_v2", "version": "gemm")",
        R"("config_groups": {"swizzled": {"targets": ["Linear"]}}, "ignore": ["re:.*packed", "layout"])",
        R"("quantized_layers": {"tile_embed": {"quant_algo": "NVFP4"}})",
        R"("version": "0.19.0")",
        R"("dynamic": {"+:.*shuffle.*": {"bits": 4}})",
        R"("modules_to_not_convert": ["patch_shuffle"])",
        R"("quant_method": "twofour", "layout": "v7-packed", "groups": [{"layout": "g8"}])",
        R"("weight_block_size": [128, 128])",
        R"("zp_dtype": null, "actorder": null, "scale_dtype": "torch.uint8")"})
    CHECK_MESSAGE(!is_found(words), std::string(words));
  const std::string scales = R"("scale_layout": "swizzled")";
  CHECK(places(entry(R"("config_groups": {"a": {"weights": {)" + scales + "}}}")) ==
        "config.json:quantization_config.config_groups.a.weights.scale_layout");
  CHECK(places(entry(R"("quant_method": "twofour", "layout": "v7", "base": {)" + scales + "}")) ==
        "config.json:quantization_config.base.scale_layout");
  CHECK(places("null", R"({"quantization": {)" + scales + "}}") ==
        "hf_quant_config.json:quantization.scale_layout");
  // Quark's plain order of nibbles is not that of codes with the names of AWQ.
  const std::string order = entry(R"("export": {"pack_method": "order"})");
  const std::vector<TensorInfo> codes{{"m.qweight", DType::kI32, {8, 8}}},
      bytes{{"m.weight", DType::kU8, {8, 8}}};
  CHECK(places(order, "null", codes) == "config.json:quantization_config.export.pack_method");
  CHECK(places(order, "null", bytes).empty());
}

TEST_CASE("one file is read as the configuration of its folder says, which no output gets") {
  const auto open_file = [](const Scratch& scratch, const std::string& config) {
    StoredInt4 w(16, 64, 16, DType::kBF16, 1);
    w.make_symmetric();
    Tensors tensors;
    w.add_gptq(tensors, "m", 0);
    write_checkpoint(scratch / "c", {tensors}, config);
    return Checkpoint::open(scratch / "c" / "model.safetensors");
  };
  const Scratch first, second, third, fourth;
  const Checkpoint rotated = open_file(first, entry(R"("rotation_config": {"algorithm": "x"})"));
  CHECK(find_config_terms(rotated, rotated.tensors()).size() == 1);
  CHECK(rotated.config().is_null());
  const auto zero_offset = [](const Checkpoint& c) { return only(find_weight_modules(c)).zero_offset; };
  CHECK(zero_offset(open_file(second, int4_config("gptq", 16, R"(, "checkpoint_format": "gptq_v2")"))) == 0);
  CHECK(zero_offset(open_file(third, int4_config("gptq", 16, ""))) == 1);
  const Checkpoint plain = open_file(fourth, "{}");
  CHECK(find_config_terms(plain, plain.tensors()).empty());
  write_text(fourth / "c" / "quantize_config.json", R"({"bits": 4, "checkpoint_format": "gptq_v2"})");
  CHECK(zero_offset(plain) == 0);
}

TEST_CASE("what asks for nothing is no transform") {
  for (const char* words :
       {R"("transform_config": null)", R"("transform_config": {})",
        R"("transform_config": {"config_groups": {}})", R"("base": {"transform_config": {}})",
        R"("rotation_config": null)", R"("hadamard_group_size": 0)", R"("algo_config": null)",
        R"("algo_config": [])", R"("quant_method": "fp8")"})
    CHECK_MESSAGE(places(entry(words)).empty(), words);
  for (const char* config :
       {"null", "{}", "5", R"({"vision_config": {"rotation": 3}})", R"({"rotation": 3})"})
    CHECK(places(config).empty());
}

TEST_CASE("algorithms that scale inputs or add matrices need a tensor that says by what") {
  std::vector<TensorInfo> tensors(1);
  for (const auto& [algorithm, part] : {std::pair{"NVFP4_AWQ", "pre_quant_scale"},
                                        {"nvfp4_awq", "pre_quant_scale"},
                                        {"NVFP4_SVDQUANT", "svdquant_lora_a"}}) {
    CAPTURE(algorithm);
    const std::string words = R"("quant_algo": ")" + std::string(algorithm) + R"(")";
    tensors[0].name = "m.weight";
    CHECK(places(entry(words), "null", tensors) == "config.json:quantization_config.quant_algo");
    CHECK(places("{}", R"({"quantization": {)" + words + "}}", tensors) ==
          "hf_quant_config.json:quantization.quant_algo");
    CHECK(places(entry(R"("quantized_layers": {"m": {)" + words + "}}"), "null", tensors) ==
          "config.json:quantization_config.quantized_layers.m.quant_algo");
    CHECK(places(entry(words)).empty());
    tensors[0].name = std::string("m.") + part;
    CHECK(places(entry(words), "null", tensors).empty());  // which is refused as such
  }
  CHECK(places(entry(R"("quant_algo": "NVFP4")"), "null", tensors).empty());
  CHECK(places(entry(R"("quant_algo": "W4A16_AWQ")"), "null", tensors).empty());
}

TEST_CASE("a key that decides values and has another JSON type is found in every place of it") {
  const std::string q = "config.json:quantization_config.";
  const std::pair<const char*, std::string> odd[] = {
      {R"("quant_method": "gptq", "sym": 1)", "sym"},
      {R"("quant_method": "gptq", "desc_act": 1)", "desc_act"},
      {R"("quant_method": "gptq_marlin", "desc_act": "true")", "desc_act"},
      {R"("quant_method": "gptq", "bits": "4")", "bits"},
      {R"("quant_method": "gptq", "group_size": 32.5)", "group_size"},
      {R"("quant_method": "gptq", "checkpoint_format": 2)", "checkpoint_format"},
      {R"("quant_method": "gptq", "dynamic": {"+:.*q_proj": {"desc_act": 1}})",
       "dynamic.+:.*q_proj.desc_act"},
      {R"("quant_method": "gptq", "dynamic": {"+:.*q_proj": {"sym": "yes"}})", "dynamic.+:.*q_proj.sym"},
      {R"("quant_method": "gptq", "dynamic": [])", "dynamic"},
      {R"("quant_method": "auto-round", "extra_config": {"m": {"bits": "8"}})", "extra_config.m.bits"},
      {R"("quant_method": "awq", "zero_point": 0)", "zero_point"},
      {R"("quant_method": "fp8", "weight_block_size": 128)", "weight_block_size"},
      {R"("quant_method": "fp8", "fmt": 4)", "fmt"},
      {R"("quant_method": "modelopt", "quant_algo": 4)", "quant_algo"},
      {R"("quant_method": "modelopt", "has_zero_point": "true")", "has_zero_point"},
      {R"("quant_method": "modelopt", "quantized_layers": {"m": {"pre_quant_scale": 1}})",
       "quantized_layers.m.pre_quant_scale"},
      {R"("quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"symmetric": "false"}}})",
       "config_groups.a.weights.symmetric"},
      {R"("quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": "4"}}})",
       "config_groups.a.weights.num_bits"},
      {R"("quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"actorder": 1}}})",
       "config_groups.a.weights.actorder"},
      {R"("quant_method": "compressed-tensors", "config_groups": {"a": {"targets": "Linear"}})",
       "config_groups.a.targets"},
      {R"("quant_method": "twofour", "format": 4, "base": {"quant_method": "gptq", "sym": 0})", "base.sym"},
  };
  for (const auto& [words, key] : odd) CHECK_MESSAGE(places(entry(words)) == q + key, words);
  CHECK(places("{}", R"({"quantization": {"quant_algo": "NVFP4", "group_size": "16"}})") ==
        "hf_quant_config.json:quantization.group_size");
  const auto found =
      find_config_terms(parse_json("config", entry(R"("quant_method": "gptq", "sym": "false")")), Json(), {});
  CHECK(found[0].problem == R"(expected true or false, found "false")");
  CHECK(found[0].rule == std::string("config-format"));
  for (
      const char* words :
      {R"("quant_method": "gptq", "sym": false, "desc_act": null, "bits": 4, "group_size": -1, "dynamic": {"-:x": {}})",
       R"("quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"symmetric": true,
           "actorder": "group", "num_bits": 4, "block_structure": "128x128"}, "targets": ["Linear"]}})",
       R"("quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "sym": 1)",
       R"("quant_method": "compressed-tensors", "bits": "4", "config_groups": {})",
       R"("quant_method": "exl3", "bits": 3.5)", R"("quant_method": "auto-round", "group_size": [128, 128])",
       R"("quant_method": "twofour", "format": 4, "bits": "4")"})
    CHECK_MESSAGE(places(entry(words)).empty(), words);
}

TEST_CASE("a setting that promises tensors needs them") {
  std::vector<TensorInfo> tensors(1);
  const auto with = [&](const char* name, const std::string& words) {
    tensors[0].name = name;
    return places(entry(R"("quant_method": "modelopt", )" + words), "null", tensors);
  };
  const std::string q = "config.json:quantization_config.";
  CHECK(with("m.weight", R"("pre_quant_scale": true)") == q + "pre_quant_scale");
  CHECK(with("m.weight", R"("pre_quant_scale": false)").empty());
  CHECK(with("n.input_quantizer._pre_quant_scale", R"("pre_quant_scale": true)").empty());
  CHECK(with("m.weight", R"("has_zero_point": true)") == q + "has_zero_point");
  CHECK(with("zero.conv.weight", R"("has_zero_point": true)") == q + "has_zero_point");
  CHECK(with("m.weight_zero_point", R"("has_zero_point": true)").empty());
  CHECK(with("m.input_zero_point", R"("has_zero_point": true)") == q + "has_zero_point");
  const std::string layer = R"("quantized_layers": {"a.b": {"has_zero_point": true}})";
  CHECK(with("a.b.weight_zero_point", layer).empty());
  CHECK(with("a.bc.weight_zero_point", layer) == q + "quantized_layers.a.b.has_zero_point");
  const auto found = find_config_terms(parse_json("c", entry(layer)), Json(), tensors);
  CHECK(found[0].problem == "expected false, because a.b has no zero points, found true");
  CHECK(found[0].rule == std::string("incomplete-module"));
}

}  // namespace config_terms_test
