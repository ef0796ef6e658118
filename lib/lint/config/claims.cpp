#include "lib/lint/config/claims.h"

#include <algorithm>

#include "lib/checkpoint/model_config.h"

namespace twofour {
namespace {

void read_compressed_tensors(const Json& entry, Claims& c) {
  c.compressed_tensors = true;
  const Json groups = entry.contains("config_groups") && entry["config_groups"].is_object()
                          ? entry["config_groups"]
                          : Json::object();
  c.all_linears = c.only_nvfp4 = !groups.empty();
  for (const Json& g : groups) {
    const auto targets = string_list(g, "targets");
    c.all_linears = c.all_linears && targets == std::vector<std::string>{"Linear"};
    const Json none = Json::object();
    const Json& weights =
        g.is_object() && g.contains("weights") && g["weights"].is_object() ? g["weights"] : none;
    c.only_nvfp4 = c.only_nvfp4 && weights.contains("num_bits") && weights["num_bits"] == 4 &&
                   text_at(weights, "type") == "float" && weights.contains("group_size") &&
                   weights["group_size"] == 16;
  }
}

}  // namespace

std::string text_at(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

Claims read_claims(const LintInput& s) {
  Claims c;
  const Json& entry = s.quantization;
  if (!entry.is_object()) return c;
  const Json* q = &entry;  // hf_quant_config.json has it one level down
  std::string place = s.quantization_key.empty() ? "" : s.quantization_key + ".";
  if (entry.contains("quantization") && entry["quantization"].is_object()) {
    q = &entry["quantization"];
    place += "quantization.";
  }
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& text : string_list(*q, key)) c.ignored.try_emplace(std::move(text), place + key);
  }
  if (text_at(entry, "quant_method") == "compressed-tensors") {
    read_compressed_tensors(entry, c);
    return c;
  }
  c.algo = text_at(*q, "quant_algo");
  c.modelopt = text_at(entry, "quant_method") == "modelopt" || q != &entry;
  if (q->contains("quantized_layers") && (*q)["quantized_layers"].is_object()) {
    for (const auto& [name, layer] : (*q)["quantized_layers"].items())
      c.layers[name] = text_at(layer, "quant_algo");
  }
  c.only_nvfp4 = c.algo.find("NVFP4") != c.algo.npos;
  c.all_linears = c.modelopt && c.only_nvfp4 && c.layers.empty();
  return c;
}

}  // namespace twofour
