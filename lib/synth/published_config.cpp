#include "lib/synth/published_config.h"

#include <algorithm>

#include "formats/module_names.h"
#include "lib/base/names/pattern.h"

namespace twofour {
namespace {

struct KeyedFormat {
  std::string key;
  const SynthFormat* format;
};

/// The container of a module: "P.experts" for "P.experts.7.w1", and the parent for a part of a table. For any
/// other module, it is the module's own name.
std::string container_of(const SynthModule& module) {
  const std::string& name = module.name();
  if (module.format->shared) return std::string(module_of(name));
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  return at != name.npos ? name.substr(0, at + kExperts.size() - 1) : name;
}

std::vector<KeyedFormat> keyed_formats(const SynthListing& listing, bool containers) {
  std::vector<KeyedFormat> keys;
  for (const SynthModule& m : listing.modules) {
    if (m.format == nullptr) continue;
    std::string key = containers || m.format->shared ? container_of(m) : m.name();
    if (keys.empty() || keys.back().key != key) keys.push_back({std::move(key), m.format});
  }
  return keys;
}

/// The entry of a module in quantized_layers. MiniMax's script omits group_size for MXFP8, and ModelOpt omits
/// it for formats without groups.
Json layer_entry(const SynthFormat& f) {
  Json entry = {{"quant_algo", f.algorithm}};
  if (f.columns > 0 && f.encoding != SynthEncoding::kMxfp8) entry["group_size"] = f.columns;
  return entry;
}

/// The config_groups that ModelOpt writes. They state activations of 4 bits even for weight-only formats, and
/// they omit FP8 blocks.
Json config_groups(const std::vector<KeyedFormat>& keys) {
  std::vector<const SynthFormat*> formats;
  for (const KeyedFormat& k : keys) {
    if (std::find(formats.begin(), formats.end(), k.format) == formats.end()) formats.push_back(k.format);
  }
  Json groups = Json::object();
  for (const SynthFormat* format : formats) {
    const bool nvfp4 = format->codes == SynthCodes::kNibbles;
    if (!nvfp4 && format->columns > 0) continue;
    Json numbers = {{"dynamic", false}, {"num_bits", nvfp4 ? 4 : 8}, {"type", "float"}};
    if (nvfp4) numbers["group_size"] = 16;
    std::vector<std::string> targets;
    for (const KeyedFormat& k : keys) {
      if (k.format == format) targets.push_back(k.key);
    }
    std::sort(targets.begin(), targets.end());
    groups["group_" + std::to_string(groups.size())] = {
        {"input_activations", numbers}, {"weights", numbers}, {"targets", targets}};
  }
  return groups;
}

void fill_modelopt(const SynthListing& listing, Json& quantization, Json& hf_quant, bool containers) {
  const std::vector<KeyedFormat> keys = keyed_formats(listing, containers);
  Json layers = Json::object();
  for (const KeyedFormat& k : keys) layers.items().emplace_back(k.key, layer_entry(*k.format));
  if (quantization.contains("config_groups")) quantization["config_groups"] = config_groups(keys);
  quantization["quantized_layers"] = layers;
  if (!hf_quant.is_null()) hf_quant["quantization"]["quantized_layers"] = layers;
}

}  // namespace

void fill_modelopt_linears(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt(listing, quantization, hf_quant, false);
}

void fill_modelopt_containers(const SynthListing& listing, Json& quantization, Json& hf_quant) {
  fill_modelopt(listing, quantization, hf_quant, true);
}

std::vector<std::string> float_modules(const SynthListing& listing, const std::string& pattern) {
  const NamePattern wanted(pattern);
  std::vector<std::string> names;
  for (const SynthModule& m : listing.modules) {
    if (m.format == nullptr && m.is_linear() && wanted.matches(m.name())) names.push_back(m.name());
  }
  return names;
}

void append_names(Json& list, const std::vector<std::string>& names) {
  for (const std::string& name : names) list.push_back(name);
}

void fill_nvfp4_scheme(Json& group) {
  Json weights = {{"actorder", nullptr},
                  {"block_structure", nullptr},
                  {"dynamic", false},
                  {"group_size", 16},
                  {"num_bits", 4},
                  {"observer", "memoryless_minmax"},
                  {"observer_kwargs", Json::object()},
                  {"scale_dtype", "torch.float8_e4m3fn"},
                  {"strategy", "tensor_group"},
                  {"symmetric", true},
                  {"type", "float"},
                  {"zp_dtype", nullptr}};
  Json activations = weights;
  activations["dynamic"] = "local";
  activations["observer"] = "static_minmax";
  group["format"] = "nvfp4-pack-quantized";
  group["input_activations"] = activations;
  group["output_activations"] = nullptr;
  group["weights"] = weights;
}

void fill_ignored_names(const SynthListing& listing, Json& quantization, Json&) {
  std::vector<std::string> names = float_modules(listing, "*");
  std::erase_if(names, [](const std::string& n) {
    return n.starts_with("mtp.") || n.ends_with("conv1d") || n.ends_with("patch_embed.proj");
  });
  append_names(quantization["ignore"], names);
}

}  // namespace twofour
