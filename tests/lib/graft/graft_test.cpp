#include <doctest/doctest.h>

#include <map>

#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_int4.h"

namespace graft_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kStyles = {"mtp.layers", "mtp.", "inlined", "text_config"};

/// config.json of a checkpoint of two layers; `drafts` as the style counts them.
std::string config_text(const std::string& style, int drafts, const std::string& quantization,
                        const std::string& more = "") {
  const std::string counts = fmt::format(
      R"("num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 48, "num_experts": 4, "{}": {}{})",
      style == "text_config" || style == "mtp.layers" ? "mtp_num_hidden_layers" : "num_nextn_predict_layers",
      drafts, more);
  const std::string entry = quantization.empty() ? "" : R"(, "quantization_config": )" + quantization;
  return style == "text_config" ? R"({"model_type": "x", "text_config": {)" + counts + "}" + entry + "}"
                                : R"({"model_type": "x", )" + counts + entry + "}";
}

const std::string kModelOpt =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "*.self_attn.q_proj", "*.self_attn.k_proj", "*.self_attn.v_proj", "*.mlp.gate"]})";
const std::string kHfQuant =
    R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16,
        "kv_cache_quant_algo": null, "exclude_modules": ["lm_head", "*.self_attn.q_proj", "*.self_attn.k_proj",
        "*.self_attn.v_proj", "*.mlp.gate"]}})";
const std::string kCompressed =
    R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0":
        {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16,
         "strategy": "tensor_group"}, "input_activations": null}},
        "ignore": ["lm_head", "re:.*self_attn\\.[qkv]_proj$", "re:.*mlp\\.gate$"]})";

/// A draft layer of that style; its matrices in NVFP4 of a dialect, or in BF16 where it is empty.
Tensors draft_of(const std::string& style, const std::string& dialect) {
  Tensors tensors;
  unsigned seed = 500;
  const std::string layer = style == "inlined" ? "model.layers.2."
                            : style == "mtp."  ? "mtp.0."
                                               : "mtp.layers.0.";
  const std::string joint = style == "inlined" ? layer + "eh_proj"
                            : style == "mtp."  ? layer + "eh_proj"
                                               : "mtp.fc";
  add_bf16(tensors, joint + ".weight", {32, 64}, ++seed);
  add_bf16(tensors, (style == "inlined" || style == "mtp." ? layer : "mtp.") + "norm.weight", {32}, ++seed);
  for (int e = 0; e < 4; ++e) {
    for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = p == std::string("down_proj");
      const std::string name = fmt::format("{}mlp.experts.{}.{}", layer, e, p);
      const Nvfp4Matrix m = random_matrix(down ? 32 : 16, down ? 16 : 32, ++seed);
      if (dialect.empty()) {
        add_bf16(tensors, name + ".weight", {m.n, m.k}, seed);
      } else if (dialect == "modelopt") {
        add_modelopt(tensors, name, m);
      } else {
        add_compressed_tensors(tensors, name, m);
      }
    }
  }
  add_bf16(tensors, layer + "mlp.gate.weight", {4, 32}, ++seed);
  return tensors;
}

Tensors joined(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// All tensors of `a`, and those of `b` over them.
ReadTensors over(ReadTensors a, const ReadTensors& b) {
  for (const auto& [name, tensor] : b) a[name] = tensor;
  return a;
}

ReadTensors named(const ReadTensors& all, const Tensors& some) {
  ReadTensors left;
  for (const TensorData& t : some) left[t.name] = all.at(t.name);
  return left;
}

/// One number in F32, of any shape.
TensorData one_f32(const std::string& name, std::vector<int64_t> shape) {
  return {name, DType::kF32, std::move(shape), {0, 0, 0x80, 0x3F}};
}

}  // namespace

TEST_CASE("draft layers come in every style, dialect and format; dropped again, the base is left") {
  for (const std::string& style : kStyles) {
    for (const std::string dialect : {"", "modelopt", "compressed-tensors"}) {
      for (const bool floats : {true, false}) {
        if (dialect.empty() && !floats) continue;
        CAPTURE(style);
        CAPTURE(dialect);
        CAPTURE(floats);
        const Scratch scratch;
        const std::string words = dialect.empty() ? "" : dialect == "modelopt" ? kModelOpt : kCompressed;
        const Tensors draft = draft_of(style, floats ? "" : dialect);
        Tensors base, donor;
        if (dialect.empty()) {
          for (Tensors* to : {&base, &donor}) {
            add_bf16(*to, "model.norm.weight", {32}, to == &base ? 1 : 2);
            for (const char* l : {"0", "1"})
              add_bf16(*to, fmt::format("model.layers.{}.mlp.up_proj.weight", l), {16, 32},
                       to == &base ? 3 : 4);
          }
        } else {
          base = language_model(2, 4, 1, dialect);
          donor = language_model(2, 4, 2, dialect);
        }
        write_checkpoint(scratch / "base", {base}, config_text(style, 0, words));
        write_checkpoint(scratch / "donor", {donor, draft}, config_text(style, 1, words));
        if (dialect == "modelopt") {
          for (const char* at : {"base", "donor"}) put_text(scratch / at / "hf_quant_config.json", kHfQuant);
        }
        write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
        CHECK((read_tensors(scratch / "out") ==
               over(read_tensors(scratch / "base"), named(read_tensors(scratch / "donor"), draft))));
        CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
        CHECK(validate(scratch / "out").differences.empty());
        const Json config = json_at(scratch / "out/config.json");
        const Json& counts = style == "text_config" ? config["text_config"] : config;
        CHECK(counts[style == "text_config" || style == "mtp.layers" ? "mtp_num_hidden_layers"
                                                                     : "num_nextn_predict_layers"] == 1);
        write_edited(scratch / "out", {}, drop_of({"mtp"}), scratch / "back");
        CHECK((read_tensors(scratch / "back") == read_tensors(scratch / "base")));
        CHECK(read_text(scratch / "back/config.json") == read_text(scratch / "base/config.json"));
        if (dialect == "modelopt")
          CHECK(read_text(scratch / "back/hf_quant_config.json") ==
                read_text(scratch / "base/hf_quant_config.json"));
        CHECK(differences_of_edit(scratch / "back", scratch / "out") == "");
      }
    }
  }
}

TEST_CASE("dropping all that was grafted gives the base's config files back, byte for byte") {
  const Scratch scratch;
  // Without a count of draft layers, and not as we would write it.
  const std::string config = R"({"hidden_size":32,   "eps": 1e-6, "num_hidden_layers" :2,
  "num_experts": 4, "quantization_config": )" +
                             std::string(kModelOpt) + "}";
  const std::string hf = std::string(kHfQuant) + "\n\n";
  write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")}, config);
  put_text(scratch / "base/hf_quant_config.json", hf);
  write_checkpoint(scratch / "donor",
                   {language_model(2, 4, 2, "modelopt"), draft_of("mtp.layers", "modelopt")},
                   config_text("mtp.layers", 1, kModelOpt));
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  CHECK(json_at(scratch / "out/config.json")["mtp_num_hidden_layers"] == 1);
  write_edited(scratch / "out", {}, drop_of({"mtp"}), scratch / "back");
  CHECK(read_text(scratch / "back/config.json") == config);
  CHECK(read_text(scratch / "back/hf_quant_config.json") == hf);
  CHECK((read_tensors(scratch / "back") == read_tensors(scratch / "base")));
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
  CHECK(differences_of_edit(scratch / "back", scratch / "out") == "");
  CHECK(validate(scratch / "back").differences.empty());

  put_text(scratch / "back/config.json", config + " ");
  CHECK(contains(differences_of_edit(scratch / "back", scratch / "out"), "source was grafted"));
  put_text(scratch / "base/config.json", config + " ");
  CHECK(contains(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor"),
                 "expected the base's config files"));

  // Less than what came, and a base of which something was replaced, are edited by what their configs say.
  write_edited(scratch / "out", {}, drop_of({"mtp", "lm_head"}), scratch / "less");
  CHECK(json_at(scratch / "less/config.json")["mtp_num_hidden_layers"] == 0);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp", "lm_head"}), scratch / "more");
  CHECK(!json_at(scratch / "more/twofour.json")["source"].contains("base"));
  write_edited(scratch / "more", {}, drop_of({"mtp"}), scratch / "left");
  CHECK(json_at(scratch / "left/config.json")["mtp_num_hidden_layers"] == 0);
}

TEST_CASE("config files that say what they said are copied byte for byte") {
  const Scratch scratch;
  const std::string config =
      R"({"num_hidden_layers" :2, "hidden_size":32, "num_experts": 4, "quantization_config":)" +
      std::string(kModelOpt) + "}";
  write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")}, config);
  put_text(scratch / "base/hf_quant_config.json", std::string(kHfQuant) + "  ");
  write_checkpoint(scratch / "donor", {language_model(2, 4, 2, "modelopt")},
                   config_text("mtp.layers", 0, kModelOpt));
  write_edited(scratch / "base", scratch / "donor", graft_of({"lm_head"}), scratch / "out");
  write_edited(scratch / "base", {}, drop_of({"model.norm"}), scratch / "less");
  for (const char* at : {"out", "less"}) {
    for (const char* name : {"config.json", "hf_quant_config.json"})
      CHECK(read_text(scratch / at / name) == read_text(scratch / "base" / name));
  }
}

TEST_CASE("lists of the donor come with what they take, and both files keep their spelling of a format") {
  const Scratch scratch;
  const auto words = [](const std::string& list, const std::string& algorithm, const std::string& more) {
    return R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", ")" + list + R"(": ["lm_head")" +
           (more.empty() ? "" : R"(, "mtp.fc", "mtp.layers.*.self_attn*")") +
           R"(], "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16})" +
           (more.empty() ? "" : R"(, "mtp.layers.0.mlp.up_proj": {"quant_algo": ")" + algorithm + "\"}") +
           "}}";
  };
  const auto write = [&](const fs::path& at, unsigned seed, bool drafts) {
    Tensors tensors;
    add_modelopt(tensors, "model.layers.0.mlp.up_proj", random_matrix(16, 32, ++seed));
    add_bf16(tensors, "lm_head.weight", {48, 32}, ++seed);
    if (drafts) {
      tensors.push_back({"mtp.layers.0.mlp.up_proj.weight",
                         DType::kF8E4M3,
                         {128, 32},
                         std::vector<uint8_t>(128 * 32, 0x38)});
      tensors.push_back(one_f32("mtp.layers.0.mlp.up_proj.weight_scale", {1, 1, 1, 1}));
      add_bf16(tensors, "mtp.layers.0.self_attn.q_proj.weight", {32, 32}, ++seed);
      add_bf16(tensors, "mtp.fc.weight", {32, 64}, ++seed);
    }
    const std::string more = drafts ? "mtp" : "";
    write_checkpoint(
        at, {tensors},
        R"({"model_type": "x", "num_hidden_layers": 1, "hidden_size": 32, "mtp_num_hidden_layers": )" +
            std::string(drafts ? "1" : "0") + R"(, "quantization_config": )" +
            words("ignore", "FP8_BLOCK_SCALES", more) + "}");
    put_text(at / "hf_quant_config.json",
             R"({"quantization": )" + words("exclude_modules", "FP8_PB_WO", more) + "}");
  };
  write(scratch / "base", 1, false);
  write(scratch / "donor", 9, true);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  CHECK(json_line(json_at(scratch / "out/config.json")["quantization_config"]) ==
        json_line(json_at(scratch / "donor/config.json")["quantization_config"]));
  CHECK(json_line(json_at(scratch / "out/hf_quant_config.json")) ==
        json_line(json_at(scratch / "donor/hf_quant_config.json")));
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
}

TEST_CASE("FP8 of DeepSeek-V3 names no module that loaders know: nor does what is grafted") {
  const Scratch scratch;
  const std::string fp8 = R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})";
  const auto write = [&](const fs::path& at, bool drafts) {
    Tensors tensors;
    for (const char* l : {"0", "1"}) {
      if (!drafts && l == std::string("1")) continue;
      const std::string layer = fmt::format("model.layers.{}.", l);
      tensors.push_back(
          {layer + "mlp.up_proj.weight", DType::kF8E4M3, {16, 32}, std::vector<uint8_t>(512, 0x38)});
      tensors.push_back(one_f32(layer + "mlp.up_proj.weight_scale_inv", {1, 1}));
      add_bf16(tensors, layer + "mlp.gate.weight", {4, 32}, 1);
    }
    if (drafts) add_bf16(tensors, "model.layers.1.eh_proj.weight", {32, 64}, 2);
    write_checkpoint(at, {tensors},
                     R"({"num_hidden_layers": 1, "hidden_size": 32, "num_nextn_predict_layers": )" +
                         std::string(drafts ? "1" : "0") + R"(, "quantization_config": )" + fp8 + "}");
  };
  write(scratch / "base", false);
  write(scratch / "donor", true);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  CHECK(json_line(json_at(scratch / "out/config.json")["quantization_config"]) ==
        json_line(parse_json("fp8", fp8)));
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
}

TEST_CASE("matrices of a latent space and norms of hyper-connections fit a base that has them") {
  const Scratch scratch;
  const std::string config =
      R"({"num_hidden_layers": 1, "hidden_size": 32, "hc_count": 4, "mtp_num_hidden_layers": 1})";
  Tensors base, donor;
  for (Tensors* to : {&base, &donor})
    add_bf16(*to, "model.layers.0.mlp.experts.0.up_proj.weight", {16, 8}, 1);
  add_bf16(donor, "mtp.layers.0.mlp.experts.0.up_proj.weight", {16, 8}, 2);
  add_bf16(donor, "mtp.pre_fc_norm_hidden.weight", {128}, 3);
  write_checkpoint(scratch / "base", {base}, config);
  write_checkpoint(scratch / "donor", {donor}, config);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  CHECK((read_tensors(scratch / "out") == read_tensors(scratch / "donor")));
  add_bf16(donor, "mtp.layers.0.mlp.experts.0.gate_proj.weight", {16, 24}, 2);
  write_checkpoint(scratch / "wide", {donor}, config);
  CHECK(contains(message_of([&] { open_edited(scratch / "base", scratch / "wide", graft_of({"mtp"})); }),
                 "hidden_size 32"));
}

TEST_CASE("the files of a graft say what was taken from which files") {
  const Scratch scratch;
  const Tensors draft = draft_of("mtp.layers", "");
  write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")},
                   config_text("mtp.layers", 0, kModelOpt));
  write_checkpoint(scratch / "donor", {language_model(2, 4, 1, "modelopt"), draft},
                   config_text("mtp.layers", 1, kModelOpt));
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp", "re:lm_head$"}), scratch / "out");
  const Json manifest = json_at(scratch / "out/twofour.json");
  CHECK(manifest["recipe"]["edit"] == Json({{"graft", {{"take", {"mtp", "re:lm_head$"}}}}}));
  std::vector<std::string> files;
  for (const Json& file : manifest["source"]["files"]) files.push_back(file["name"].get<std::string>());
  CHECK(files == std::vector<std::string>{"model.safetensors", "donor:model-00001-of-00002.safetensors",
                                          "donor:model-00002-of-00002.safetensors"});
  const Json ignore = json_at(scratch / "out/config.json")["quantization_config"]["ignore"];
  CHECK(json_line(ignore) ==
        R"(["lm_head","*.self_attn.q_proj","*.self_attn.k_proj","*.self_attn.v_proj","*.mlp.gate",)"
        R"("mtp.fc","mtp.layers.0.mlp.experts*"])");
}

TEST_CASE("a layer and an embedding are replaced; what the base had of their modules goes") {
  const Scratch scratch;
  Tensors base = language_model(2, 0, 1, "modelopt"), donor = language_model(2, 0, 7, "modelopt");
  add_bf16(base, "model.layers.1.self_attn.o_proj.bias", {32}, 3);  // of a module that comes
  add_bf16(donor, "model.layers.1.self_attn.k_proj.k_scale", {1}, 4);
  write_checkpoint(scratch / "base", {base}, config_text("mtp.layers", 0, kModelOpt));
  write_checkpoint(scratch / "donor", {donor}, config_text("mtp.layers", 0, kModelOpt));
  write_edited(scratch / "base", scratch / "donor", graft_of({"model.layers.1.*", "embeddings"}),
               scratch / "out");
  const ReadTensors a = read_tensors(scratch / "base"), b = read_tensors(scratch / "donor");
  ReadTensors expected;
  for (const auto& [name, tensor] : a) {
    if (name != "model.layers.1.self_attn.o_proj.bias") expected[name] = tensor;
  }
  for (const auto& [name, tensor] : b) {
    if (name.starts_with("model.layers.1.") || name == "model.embed_tokens.weight") expected[name] = tensor;
  }
  CHECK((read_tensors(scratch / "out") == expected));
  CHECK(json_at(scratch / "out/config.json") == json_at(scratch / "base/config.json"));
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
}

TEST_CASE("a KV scale comes with its projection") {
  for (const std::string scale : {"self_attn.k_proj.k_scale", "self_attn.k_scale"}) {
    const Scratch scratch;
    Tensors base = language_model(2, 0, 1, "modelopt"), donor = language_model(2, 0, 7, "modelopt");
    for (Tensors* to : {&base, &donor}) {
      add_bf16(*to, "model.layers.1." + scale, {1}, to == &base ? 1 : 2);
      add_bf16(*to, "model.layers.0." + scale, {1}, to == &base ? 1 : 2);
    }
    write_checkpoint(scratch / "base", {base}, config_text("mtp.layers", 0, kModelOpt));
    write_checkpoint(scratch / "donor", {donor}, config_text("mtp.layers", 0, kModelOpt));
    write_edited(scratch / "base", scratch / "donor", graft_of({"model.layers.1.self_attn.k_proj"}),
                 scratch / "out");
    const auto out = read_tensors(scratch / "out");
    CHECK(
        (out.at("model.layers.1." + scale) == read_tensors(scratch / "donor").at("model.layers.1." + scale)));
    CHECK(
        (out.at("model.layers.0." + scale) == read_tensors(scratch / "base").at("model.layers.0." + scale)));
    CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
  }
}

TEST_CASE("entries of mixed precision come and go with their modules, in both files") {
  const std::string layers = R"("quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4",
    "group_size": 16}, "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}{}})";
  const auto words = [&](const std::string& more) {
    std::string text = layers;
    text.replace(text.find("{}"), 2, more);
    return text;
  };
  const auto write = [&](const fs::path& at, unsigned seed, bool drafts) {
    Tensors tensors;
    for (const char* l : {"0", "1"}) {
      add_modelopt(tensors, fmt::format("model.layers.{}.mlp.up_proj", l), random_matrix(16, 32, ++seed));
      add_bf16(tensors, fmt::format("model.layers.{}.mlp.down_proj.weight", l), {32, 16}, ++seed);
    }
    if (drafts) {
      for (int e = 0; e < 2; ++e)
        add_modelopt(tensors, fmt::format("mtp.layers.0.mlp.experts.{}.up_proj", e),
                     random_matrix(16, 32, ++seed));
      add_bf16(tensors, "mtp.fc.weight", {32, 64}, ++seed);
    }
    const std::string named =
        words(drafts ? R"(, "mtp.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16})" : "");
    write_checkpoint(
        at, {tensors},
        R"({"model_type": "x", "num_hidden_layers": 2, "hidden_size": 32, "mtp_num_hidden_layers": )" +
            std::string(drafts ? "1" : "0") +
            R"(, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", )" +
            named + "}}");
    put_text(at / "hf_quant_config.json",
             R"({"producer": {}, "quantization": {"quant_algo": "MIXED_PRECISION", )" + named + "}}");
  };
  const Scratch scratch;
  write(scratch / "base", 1, false);
  write(scratch / "donor", 50, true);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  for (const Json& holder : {json_at(scratch / "out/config.json")["quantization_config"],
                             json_at(scratch / "out/hf_quant_config.json")["quantization"]}) {
    CHECK(holder["quantized_layers"].size() == 3);
    CHECK(holder["quantized_layers"]["mtp.layers.0.mlp.experts"]["quant_algo"] == "NVFP4");
  }
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
  write_edited(scratch / "out", {}, drop_of({"mtp"}), scratch / "back");
  CHECK(json_at(scratch / "back/config.json") == json_at(scratch / "base/config.json"));
  CHECK(json_at(scratch / "back/hf_quant_config.json") == json_at(scratch / "base/hf_quant_config.json"));
}

TEST_CASE("a base without quantization gets an entry for each module that is quantized") {
  const Scratch scratch;
  Tensors base;
  for (const char* l : {"0", "1"}) {
    for (const auto& [p, n, k] :
         {std::tuple{"gate_proj", 16, 32}, {"up_proj", 16, 32}, {"down_proj", 32, 16}})
      add_bf16(base, fmt::format("model.layers.{}.mlp.{}.weight", l, p), {n, k}, 3);
  }
  write_checkpoint(scratch / "base", {base}, config_text("mtp.layers", 0, ""));
  write_checkpoint(scratch / "donor",
                   {language_model(2, 4, 2, "modelopt"), draft_of("mtp.layers", "modelopt")},
                   config_text("mtp.layers", 1, kModelOpt));
  put_text(scratch / "donor/hf_quant_config.json", kHfQuant);
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  const Json entry = json_at(scratch / "out/config.json")["quantization_config"];
  CHECK(entry["quant_algo"] == "MIXED_PRECISION");
  CHECK(entry["quantized_layers"].size() == 12);
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
}

TEST_CASE("a list with an entry a layer gets the donor's entries of draft layers, and loses them") {
  const Scratch scratch;
  const std::string two = R"(, "layer_types": ["full", "linear"])",
                    three = R"(, "layer_types": ["full", "linear", "mtp"])";
  write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")},
                   config_text("inlined", 0, kModelOpt, two));
  write_checkpoint(scratch / "donor", {language_model(2, 4, 2, "modelopt"), draft_of("inlined", "")},
                   config_text("inlined", 1, kModelOpt, three));
  write_edited(scratch / "base", scratch / "donor", graft_of({"mtp"}), scratch / "out");
  CHECK(json_line(json_at(scratch / "out/config.json")["layer_types"]) == R"(["full","linear","mtp"])");
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
  write_edited(scratch / "out", {}, drop_of({"model.layers.2.*"}), scratch / "back");
  CHECK(json_at(scratch / "back/config.json") == json_at(scratch / "base/config.json"));
  CHECK(differences_of_edit(scratch / "back", scratch / "out") == "");
}

TEST_CASE(
    "floats replace experts in INT4, whose shapes are read, and the block is on the list that every engine "
    "reads") {
  const Scratch scratch;
  const std::string entry =
      R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0":
          {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32,
           "strategy": "group"}, "input_activations": null}}, "ignore": ["lm_head"]})";
  Tensors base, donor;
  for (int layer = 0; layer < 2; ++layer) {
    for (int e = 0; e < 4; ++e) {
      for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.{}", layer, e, leaf);
        const auto seed = static_cast<unsigned>(16 * layer + 4 * e + leaf[0]);
        StoredInt4 w(32, 32, 32, DType::kBF16, seed);
        w.make_symmetric();
        w.add_packed(base, name, false);
        add_bf16(donor, name + ".weight", {32, 32}, seed);
      }
    }
  }
  write_checkpoint(scratch / "base", {base}, config_text("inlined", 0, entry));
  write_checkpoint(scratch / "donor", {donor}, config_text("inlined", 0, ""));
  write_edited(scratch / "base", scratch / "donor", graft_of({"model.layers.1.*"}), scratch / "out");
  const Json ignore = json_at(scratch / "out/config.json")["quantization_config"]["ignore"];
  CHECK(json_line(ignore) == R"(["lm_head","re:^model\\.layers\\.1\\.mlp\\.experts.*"])");
  CHECK(differences_of_edit(scratch / "out", scratch / "base", scratch / "donor") == "");
}

TEST_CASE("what does not fit is refused and leaves nothing") {
  const Scratch scratch;
  const fs::path base = scratch / "base", donor = scratch / "donor";
  const auto refused = [&](const Tensors& theirs, const std::string& config, const std::string& take,
                           const std::string& part) {
    fs::remove_all(donor);
    write_checkpoint(donor, {theirs}, config);
    CHECK(contains(message_of([&] { write_edited(base, donor, graft_of({take}), scratch / "out"); }), part));
    CHECK(!fs::exists(scratch / "out"));
  };
  write_checkpoint(base, {language_model(2, 4, 1, "modelopt")}, config_text("mtp.layers", 0, kModelOpt));
  const Tensors model = language_model(2, 4, 2, "modelopt");
  const std::string config = config_text("mtp.layers", 1, kModelOpt);
  refused(model, config, "mtp", "--take 'mtp': expected a module, tensor or role of");
  refused(model, config, "re:(", "--take: ");
  refused(joined(model, draft_of("mtp.layers", "")),
          R"({"num_hidden_layers": 2, "hidden_size": 64, "mtp_num_hidden_layers": 1})", "mtp",
          "hidden_size: expected 32");
  refused(joined(model, draft_of("mtp.layers", "")),
          R"({"num_hidden_layers": 3, "hidden_size": 32, "mtp_num_hidden_layers": 1})", "mtp",
          "num_hidden_layers: expected 2");
  refused(joined(model, draft_of("mtp.layers", "compressed-tensors")),
          config_text("mtp.layers", 1, kCompressed), "mtp", "names of the modelopt dialect");
  Tensors wide;
  add_bf16(wide, "mtp.fc.weight", {32, 96}, 1);
  refused(wide, config, "mtp", "expected a matrix for the base's hidden_size 32");
  Tensors words;
  add_bf16(words, "model.embed_tokens.weight", {50, 32}, 1);
  refused(words, config, "embeddings", "expected 48 rows as in the base");
  Tensors norm;
  add_bf16(norm, "mtp.pre_fc_norm_hidden.weight", {16}, 1);
  refused(norm, config, "mtp", "expected the base's hidden_size 32");
  Tensors experts = draft_of("mtp.layers", "modelopt");
  add_modelopt(experts, "mtp.layers.0.mlp.experts.4.up_proj", random_matrix(16, 32, 2));
  refused(experts, config, "mtp", "mtp.layers.0.mlp.experts: expected 4 experts");
  Tensors deep = model;
  add_bf16(deep, "mtp.layers.1.norm.weight", {32}, 1);
  refused(deep, config, "mtp.layers.1.*", "expected draft layers 0 to 1 in the result, found no 0");
  Tensors unconfigured = draft_of("mtp.layers", "modelopt");
  refused(unconfigured, R"({"mtp_num_hidden_layers": 1})", "mtp",
          "expected a config that describes the quantization");
  Tensors uncounted = draft_of("mtp.layers", "");
  fs::remove_all(base);
  write_checkpoint(base, {model}, R"({"num_hidden_layers": 2, "quantization_config": )" + kModelOpt + "}");
  refused(uncounted, R"({"num_hidden_layers": 2})", "mtp",
          "expected num_nextn_predict_layers or mtp_num_hidden_layers");
}

TEST_CASE("artifacts in layouts are refused as base and donor") {
  const Scratch scratch;
  write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")},
                   config_text("mtp.layers", 0, kModelOpt));
  convert(scratch / "base", scratch / "v7");
  for (const auto& [a, b] : {std::pair{"base", "v7"}, {"v7", "base"}}) {
    CHECK(contains(message_of([&] { open_edited(scratch / a, scratch / b, graft_of({"lm_head"})); }),
                   "expected a checkpoint, found an artifact in a layout"));
  }
}

TEST_CASE("what changes a donor's weights beside its codes is not left behind") {
  const Scratch scratch;
  const auto error = [&](const Tensors& base, const std::string& of_base, const Tensors& donor,
                         const std::string& of_donor, const std::string& more = "") {
    for (const char* name : {"base", "donor", "out"}) fs::remove_all(scratch / name);
    write_checkpoint(scratch / "base", {base}, config_text("mtp.layers", 0, of_base));
    write_checkpoint(scratch / "donor", {donor}, config_text("mtp.layers", 0, of_donor, more));
    return message_of([&] {
      write_edited(scratch / "base", scratch / "donor", graft_of({"model.layers.1.*"}), scratch / "out");
    });
  };
  const Tensors base = language_model(2, 4, 1, "modelopt"), donor = language_model(2, 4, 2, "modelopt");
  CHECK(error(base, kModelOpt, donor, kModelOpt).empty());
  CHECK(contains(
      error(base, kModelOpt, donor, kModelOpt, R"(, "transform_config": {"a": {"type": "hadamard"}})"),
      "the weights are stored transformed"));
  const std::string rotated = R"({"rotate": true, )" + kModelOpt.substr(1);
  CHECK(contains(error(base, kModelOpt, donor, rotated), "the weights are stored transformed"));
  CHECK(contains(error(base, rotated, donor, kModelOpt), "the weights are stored transformed"));
  Tensors scaled = donor;
  add_bf16(scaled, "model.pre_quant_scale", {32}, 1);
  CHECK(contains(error(base, kModelOpt, scaled, kModelOpt), "model.pre_quant_scale"));
  CHECK(contains(error(scaled, kModelOpt, donor, kModelOpt), "model.pre_quant_scale"));
}

TEST_CASE("a donor's codes that the result's config would read as other values are refused") {
  const Scratch scratch;
  StoredInt4 w(32, 64, 32, DType::kF16, 1);
  w.raise_zeros();
  const auto write = [&](const char* name, const std::string& more, int offset) {
    Tensors tensors;
    w.add_gptq(tensors, "model.layers.0.mlp.down_proj", offset);
    add_bf16(tensors, "model.layers.0.mlp.gate.weight", {4, 32}, 1);
    write_checkpoint(scratch / name, {tensors}, int4_config("gptq", 32, more));
  };
  const auto error = [&] {
    fs::remove_all(scratch / "out");
    return message_of([&] {
      write_edited(scratch / "base", scratch / "donor", graft_of({"*.down_proj"}), scratch / "out");
    });
  };
  write("base", R"(, "sym": false)", 1);
  write("donor", R"(, "sym": false)", 1);
  CHECK(error().empty());
  write_text(scratch / "donor/quantize_config.json", R"({"bits": 4, "checkpoint_format": "gptq_v2"})");
  CHECK(contains(error(), "zero points: expected 0, found 1"));
}

}  // namespace graft_test
