#include <doctest/doctest.h>

#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace drop_modules_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kConfig =
    R"({"model_type": "x", "num_hidden_layers": 3, "hidden_size": 32, "layer_types": ["a", "b", "c"],
        "hybrid_override_pattern": "M*E", "mlp_only_layers": [0, 2], "other": [1, 2, 3],
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
        "ignore": ["lm_head", "model.layers.2.mlp.gate", "*.layers.2.self_attn*", "*.mlp.gate", "nowhere"]}})";

}  // namespace

TEST_CASE("the last layers go with their entries, counts and places in lists") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {language_model(3, 2, 1, "modelopt"), {}}, kConfig);
  write_edited(scratch / "src", {}, drop_of({"model.layers.2.*"}), scratch / "out");
  const ReadTensors before = read_tensors(scratch / "src"), after = read_tensors(scratch / "out");
  size_t went = 0;
  for (const auto& [name, tensor] : before) {
    const bool goes = name.starts_with("model.layers.2.");
    went += goes;
    CHECK(after.contains(name) != goes);
    if (!goes) CHECK((after.at(name) == tensor));
  }
  CHECK(after.size() + went == before.size());
  const Json config = json_at(scratch / "out/config.json");
  CHECK(config["num_hidden_layers"] == 2);
  CHECK(json_line(config["layer_types"]) == R"(["a","b"])");
  CHECK(config["hybrid_override_pattern"] == "M*");
  CHECK(json_line(config["mlp_only_layers"]) == "[0]");
  CHECK(json_line(config["other"]) == "[1,2,3]");
  CHECK(json_line(config["quantization_config"]["ignore"]) == R"(["lm_head","*.mlp.gate","nowhere"])");
  CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
}

TEST_CASE("compressed-tensors loses entries of what goes, in ignore and among targets") {
  const Scratch scratch;
  write_checkpoint(
      scratch / "src", {language_model(2, 0, 1, "compressed-tensors")},
      R"({"num_hidden_layers": 2, "quantization_config": {"quant_method": "compressed-tensors", "config_groups":
          {"group_0": {"targets": ["model.layers.1.mlp.up_proj"], "weights": {}}, "group_1": {"targets":
          ["model.layers.1.mlp.gate_proj", "re:.*proj$"], "weights": {}}},
          "ignore": ["re:.*layers\\.1\\.self_attn.*", "re:.*self_attn.*", "model.layers.1.self_attn.q_proj", "lm_head"]}})");
  write_edited(scratch / "src", {}, drop_of({"re:model\\.layers\\.1\\."}), scratch / "out");
  const Json entry = json_at(scratch / "out/config.json")["quantization_config"];
  CHECK(json_line(entry["config_groups"]) == R"({"group_1":{"targets":["re:.*proj$"],"weights":{}}})");
  CHECK(json_line(entry["ignore"]) == R"(["re:.*self_attn.*","lm_head"])");
  CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
}

TEST_CASE("layers of a vision tower beyond the language model's are no draft layers") {
  const Scratch scratch;
  Tensors tensors = language_model(2, 0, 1, "modelopt");
  for (int l = 0; l < 4; ++l)
    add_bf16(tensors, fmt::format("model.vision_tower.encoder.layers.{}.mlp.fc1.weight", l), {8, 8}, 9);
  add_bf16(tensors, "mtp.fc.weight", {32, 64}, 9);
  write_checkpoint(scratch / "src", {tensors}, R"({"num_hidden_layers": 2, "mtp_num_hidden_layers": 1})");
  write_edited(scratch / "src", {}, drop_of({"mtp"}), scratch / "out");
  CHECK(read_tensors(scratch / "out").size() + 1 == read_tensors(scratch / "src").size());
  write_edited(scratch / "src", {}, drop_of({"*.vision_tower.*"}), scratch / "text");
  CHECK(read_tensors(scratch / "text").size() + 4 == read_tensors(scratch / "src").size());
  CHECK(json_at(scratch / "text/config.json")["num_hidden_layers"] == 2);
}

TEST_CASE("what would leave no sound model is refused and leaves nothing") {
  const Scratch scratch;
  Tensors tensors = language_model(2, 4, 1, "modelopt");
  add_bf16(tensors, "model.layers.2.eh_proj.weight", {32, 64}, 9);
  write_checkpoint(scratch / "src", {tensors},
                   R"({"num_hidden_layers": 2, "num_experts": 4, "num_nextn_predict_layers": 1})");
  const auto refused = [&](const std::string& pattern, const std::string& part) {
    CHECK(contains(
        message_of([&] { write_edited(scratch / "src", {}, drop_of({pattern}), scratch / "out"); }), part));
    CHECK(!fs::exists(scratch / "out"));
  };
  refused("model.layers.0.*", "expected layers 0 to 1 in the result, found no 0");
  refused("model.layers.1.*",
          "draft layers, which are numbered after the last layers, to be dropped with them");
  refused("*", "expected tensors to stay");
  refused("nothing", "--modules 'nothing': expected a module");
  refused("*.experts.2.*", "--experts drops experts");
  convert(scratch / "src", scratch / "v7");
  CHECK(contains(message_of([&] { open_edited(scratch / "v7", {}, drop_of({"mtp"})); }),
                 "an artifact in a layout"));
}

TEST_CASE("a damaged twofour.json of the source is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {language_model(2, 0, 1, "modelopt")}, R"({"num_hidden_layers": 2})");
  write_edited(scratch / "src", {}, drop_of({"lm_head"}), scratch / "once");
  std::string text = read_text(scratch / "once/twofour.json");
  text.replace(text.find("lm_head"), 7, "lm_tail");
  put_text(scratch / "once/twofour.json", text);
  CHECK(contains(message_of([&] { open_edited(scratch / "once", {}, drop_of({"model.norm"})); }),
                 "twofour.json: "));
}

}  // namespace drop_modules_test
