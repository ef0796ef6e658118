#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/faults/fault_words.h"

namespace twofour {
namespace {

/// The first half of a matrix's rows.
void halve_rows(TensorData& t) {
  t.shape[0] /= 2;
  t.bytes.resize(t.bytes.size() / 2);
}
void halve_module(Save& s, const std::string& module) {
  halve_rows(s.at(module + ".weight"));
  halve_rows(s.at(module + ".weight_scale"));
}

/// The tensors of `from` again under the name `to`.
void copy_below(Save& s, const std::string& from, const std::string& to) {
  Tensors copies;
  for (const auto& [file, tensors] : s.shards) {
    for (const TensorData& t : tensors) {
      if (t.name.starts_with(from + "."))
        copies.push_back({to + t.name.substr(from.size()), t.dtype, t.shape, t.bytes});
    }
  }
  for (const TensorData& t : copies) s.add(t);
}

std::vector<Fault> module_faults() {
  return {
      {"incomplete-module", "no global scale",
       [](Save& s, Random&) { s.erase(std::string(kLinear) + ".weight_scale_2"); }},
      {"incomplete-module", "no codes", [](Save& s, Random&) { s.erase(std::string(kLinear) + ".weight"); }},
      {"incomplete-module", "no block scales",
       [](Save& s, Random& r) { s.erase(expert(r, "up_proj.weight_scale")); }},
      {"incomplete-module", "codes alone",
       [](Save& s, Random&) {
         s.erase(std::string(kLinear) + ".weight_scale");
         s.erase(std::string(kLinear) + ".weight_scale_2");
       }},
      {"module-shape", "half the scales",
       [](Save& s, Random&) { halve_rows(s.at(std::string(kLinear) + ".weight_scale")); }},
      {"unsupported-format", "codes of torchao",
       [](Save& s, Random&) {
         s.add({"model.layers.1.extra._weight_qdata", DType::kU8, {2, 8}, std::vector<uint8_t>(16)});
         s.add({"model.layers.1.extra._weight_per_tensor_scale", DType::kF32, {}, {0, 0, 0x80, 0x3F}});
       }},
      {"two-weights", "plain and packed",
       [](Save& s, Random&) {
         s.add({"model.layers.1.self_attn.q_proj.weight_packed", DType::kI32, {4}, std::vector<uint8_t>(16)});
       }},
      {"gate-up-shape", "half of up",
       [](Save& s, Random&) {
         for (int e = 0; e < 8; ++e) halve_module(s, fmt::format("{}mlp.experts.{}.up_proj", kLayer0, e));
         s.edit("config.json", [](Json& j) {  // of no known family
           j["model_type"] = "some_model";
           j["architectures"] = Json::array({"SomeModelForCausalLM"});
         });
       }},
      {"experts-missing", "a matrix", [](Save& s, Random& r) { s.erase_below(expert(r, "down_proj.")); }},
      {"experts-missing", "a whole one", [](Save& s, Random& r) { s.erase_below(expert(r, "")); }},
      {"experts-extra", "a ninth",
       [](Save& s, Random& r) {
         std::string from = expert(r, "");
         from.pop_back();
         copy_below(s, from, std::string(kLayer0) + "mlp.experts.8");
       }},
      {"expert-name", "once more with a leading zero",
       [](Save& s, Random& r) {
         const auto e = r() % 8;
         copy_below(s, fmt::format("{}mlp.experts.{}", kLayer0, e),
                    fmt::format("{}mlp.experts.0{}", kLayer0, e));
       }},
      {"expert-shape", "half of one",
       [](Save& s, Random& r) {
         const std::string from = expert(r, "");
         for (const char* m : {"gate_proj", "up_proj"}) halve_module(s, from + m);
       }},
      {"gate-up-order", "a bias that the model_type does not have",
       [](Save& s, Random&) {
         const std::string stack = "mtp.layers.0.mlp.experts.gate_up_proj";
         s.add({stack, DType::kBF16, {1, 2, 64}, std::vector<uint8_t>(256, 1)});
         s.add({stack + "_bias", DType::kBF16, {1, 2}, {1, 1, 1, 1}});
       }},
      {"weight-term", "a zero point",
       [](Save& s, Random& r) {
         s.add({expert(r, "up_proj.weight_zero_point"), DType::kI8, {1}, {1}});
       }},
      {"weight-term", "scaled inputs",
       [](Save& s, Random&) {
         s.add({std::string(kLinear) + ".pre_quant_scale", DType::kF32, {1}, {0, 0, 0x80, 0x3F}});
       }},
      {"weight-term", "transforms",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"]["transform_config"] = {{"R1", 1}}; });
       }},
      {"odd-setting", "a count in quotes",
       [](Save& s, Random&) { s.edit("config.json", [](Json& j) { j["num_experts_per_tok"] = "2"; }); }},
      {"odd-setting", "no count of experts of a token, of a class of its own",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) {
           j.erase("num_experts_per_tok");
           j["model_type"] = "anthill";
           j["architectures"] = Json::array({"AnthillForCausalLM"});
         });
       }},
      {"odd-setting", "half an expert",
       [](Save& s, Random&) { s.edit("config.json", [](Json& j) { j["num_experts_per_tok"] = 2.5; }); }},
      {"layers-missing", "the first", [](Save& s, Random&) { s.erase_below(kLayer0); }},
      {"layers-missing", "the last", [](Save& s, Random&) { s.erase_below("model.layers.1."); }},
      {"mtp-missing", "promised",
       [](Save& s, Random&) { s.edit("config.json", [](Json& j) { j["num_nextn_predict_layers"] = 1; }); }},
      {"head-missing", "not tied",
       [](Save& s, Random&) { s.edit("config.json", [](Json& j) { j["tie_word_embeddings"] = false; }); }},
      {"tensor-missing", "the embedding, which the head is tied to",
       [](Save& s, Random&) { s.erase("model.embed_tokens.weight"); }},
      {"tied-head", "stored", [](Save& s, Random&) { copy_below(s, "model.embed_tokens", "lm_head"); }},
      {"missing-input-scale", "an expert's",
       [](Save& s, Random& r) { s.erase(expert(r, "down_proj.input_scale")); }},
      {"missing-input-scale", "a linear's",
       [](Save& s, Random&) { s.erase(std::string(kLinear) + ".input_scale"); }},
  };
}

std::vector<Fault> config_faults() {
  const auto drop_quantization = [](Save& s, Random&) {
    s.edit("config.json", [](Json& j) { j.erase("quantization_config"); });
    s.files.erase("hf_quant_config.json");
  };
  return {
      {"no-config", "deleted", [](Save& s, Random&) { s.files.erase("config.json"); }},
      {"bad-config", "a list", [](Save& s, Random&) { s.files["config.json"] = "[1]"; }},
      {"bad-config", "not JSON", [](Save& s, Random&) { s.files["generation_config.json"] = "{"; }},
      {"bad-config", "config_groups of another type",
       [](Save& s, Random& r) {
         const Json odd[] = {
             Json::array({1}), "group_0", 7, {{"group_0", "weights"}}, {{"group_0", {{"weights", 4}}}}};
         s.edit("config.json",
                [&](Json& j) { j["quantization_config"]["config_groups"] = odd[r() % std::size(odd)]; });
       }},
      {"bad-config", "behind a byte order mark",
       [](Save& s, Random&) { s.files["config.json"].insert(0, "\xEF\xBB\xBF"); }},
      {"unknown-layout", "of a newer version",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) {
           Json base = j["quantization_config"];
           j["quantization_config"] = {
               {"quant_method", "twofour"}, {"layout", "v9"}, {"modules", Json::array()}, {"base", base}};
         });
       }},
      {"no-quantization-config", "dropped", drop_quantization},
      {"config-disagrees", "algorithm",
       [](Save& s, Random&) {
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["quant_algo"] = "FP8"; });
       }},
      {"config-disagrees", "lists",
       [](Save& s, Random&) {
         s.edit("hf_quant_config.json",
                [](Json& j) { j["quantization"]["exclude_modules"].push_back("*.q_norm"); });
       }},
      {"engine-lookup", "globs for parts of what engines fuse",
       [](Save& s, Random&) {
         s.edit_ignored([](Json& list) {
           Json globs = Json::array({"*.q_proj", "*.k_proj", "*.v_proj"});
           for (const Json& p : list) {
             const auto text = p.get<std::string>();
             const bool part =
                 text.ends_with(".q_proj") || text.ends_with(".k_proj") || text.ends_with(".v_proj");
             if (!part) globs.push_back(p);
           }
           list = globs;
         });
       }},
      {"engine-limit", "an algorithm that not every engine has",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"]["quant_algo"] = "W4A8_NVFP4_FP8"; });
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["quant_algo"] = "W4A8_NVFP4_FP8"; });
       }},
      {"config-format", "a method of other tensors",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"]["quant_method"] = "fp8"; });
       }},
      {"config-format", "an algorithm that nobody knows",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"]["quant_algo"] = "NVFP5"; });
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["quant_algo"] = "NVFP5"; });
       }},
      {"config-inputs", "weights alone promised",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["quantization_config"]["quant_algo"] = "W4A16_NVFP4"; });
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["quant_algo"] = "W4A16_NVFP4"; });
       }},
      {"config-cache", "in one file alone",
       [](Save& s, Random&) {
         promise_cache(s);
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["kv_cache_quant_algo"] = nullptr; });
       }},
      {"config-dtype", "quantized and ignored",
       [](Save& s, Random&) { s.edit_ignored([](Json& list) { list.push_back("*.layers.0.*.o_proj"); }); }},
      {"config-dtype", "FP8 for NVFP4",
       [](Save& s, Random&) {
         s.erase_below(kLinear);
         s.add({std::string(kLinear) + ".weight",
                DType::kF8E4M3,
                {64, 64},
                std::vector<uint8_t>(64 * 64, 0x31)});
         s.add({std::string(kLinear) + ".weight_scale", DType::kF32, {}, {0, 0, 0x80, 0x3F}});
       }},
      {"config-dtype", "not in quantized_layers",
       [](Save& s, Random& r) {
         const std::string left_out = expert(r, "up_proj");
         Json layers = Json::object();
         for (const auto& [file, tensors] : s.shards) {
           for (const TensorData& t : tensors) {
             if (!t.name.ends_with(".weight_scale_2")) continue;
             const std::string module = t.name.substr(0, t.name.rfind('.'));
             if (module != left_out) layers[module] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
           }
         }
         s.edit("config.json", [&](Json& j) {
           j["quantization_config"]["quant_algo"] = "MIXED_PRECISION";
           j["quantization_config"]["quantized_layers"] = layers;
         });
         s.files.erase("hf_quant_config.json");
       }},
      {"config-group-size", "of ModelOpt's algorithm",
       [](Save& s, Random&) {
         s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["group_size"] = 32; });
       }},
      {"config-group-size", "of a config group",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) {
           j["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 32;
         });
       }},
      {"unquantized-not-ignored", "left out",
       [](Save& s, Random& r) {
         const size_t which = r();
         s.edit_ignored([&](Json& list) {
           Json kept = Json::array();
           size_t heads = 0;
           for (const Json& p : list) heads += p == "lm_head";
           size_t left_out = which % (list.size() - heads), at = 0;
           for (const Json& p : list) {
             if (p == "lm_head" || at++ != left_out) kept.push_back(p);
           }
           list = kept;
         });
       }},
      {"unused-pattern", "a glob",
       [](Save& s, Random&) { s.edit_ignored([](Json& list) { list.push_back("*.self_atn.*"); }); }},
      {"unused-pattern", "a name",
       [](Save& s, Random&) {
         s.edit_ignored([](Json& list) { list.push_back("language_model.model.layers.0.mlp.gate"); });
       }},
      {"unreadable-pattern", "no regular expression",
       [](Save& s, Random&) { s.edit_ignored([](Json& list) { list.push_back("re:("); }); }},
      {"python-only-pattern", "look-behind",
       [](Save& s, Random&) { s.edit_ignored([](Json& list) { list.push_back("re:(?<=x)lm_head"); }); }},
      {"quantized-router", "NVFP4",
       [](Save& s, Random&) {
         for (int l = 0; l < 2; ++l) {
           const std::string gate = fmt::format("model.layers.{}.mlp.gate", l);
           s.erase_below(gate + ".");
           copy_below(s, kLinear, gate);
           for (const char* part : {".weight", ".weight_scale"}) {  // as many rows as experts
             TensorData& t = s.at(gate + part);
             t.bytes.resize(t.bytes.size() / static_cast<size_t>(t.shape[0]) * 8);
             t.shape[0] = 8;
           }
         }
         s.edit_ignored([](Json& list) {
           Json kept = Json::array();
           for (const Json& p : list) {
             if (!p.get<std::string>().ends_with("mlp.gate")) kept.push_back(p);
           }
           list = kept;
         });
       }},
      {"quantized-head", "NVFP4",
       [](Save& s, Random&) {
         copy_below(s, kLinear, "lm_head");
         s.edit("config.json", [](Json& j) { j["tie_word_embeddings"] = false; });
         s.edit_ignored([](Json& list) {
           Json kept = Json::array();
           for (const Json& p : list) {
             if (p != "lm_head") kept.push_back(p);
           }
           list = kept;
         });
       }},
      {"missing-sidecar", "code",
       [](Save& s, Random&) {
         s.edit("config.json", [](Json& j) { j["auto_map"] = {{"AutoModel", "modeling_mine.Model"}}; });
       }},
      {"missing-sidecar", "vocabulary", [](Save& s, Random&) { s.files.erase("tokenizer.json"); }},
      {"missing-sidecar", "named file",
       [](Save& s, Random&) {
         s.edit("tokenizer_config.json", [](Json& j) { j["vocab_file"] = "vocab.txt"; });
       }},
      {"no-tokenizer", "deleted",
       [](Save& s, Random&) {
         s.files.erase("tokenizer.json");
         s.files.erase("tokenizer_config.json");
       }},
      {"two-chat-templates", "different",
       [](Save& s, Random&) {
         s.files["chat_template.jinja"] = "{{ messages }}";
         s.edit("tokenizer_config.json", [](Json& j) { j["chat_template"] = "{{ other }}"; });
       }},
  };
}

}  // namespace

std::vector<Fault> content_faults() {
  std::vector<Fault> all;
  for (auto& faults : {module_faults(), config_faults(), weight_faults()}) {
    all.insert(all.end(), faults.begin(), faults.end());
  }
  return all;
}

}  // namespace twofour
