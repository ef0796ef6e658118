#include "lib/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/error.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/names/pattern.h"

namespace twofour {
namespace {

/// The version whose arithmetic quantize_nvfp4_row has. Loaders want the producer's name, too.
constexpr const char* kModelOptVersion = "0.45.0";
constexpr const char* kCompressedTensorsVersion = "0.12.2";

const char* quant_algo(const Nvfp4Config& c) { return c.weight_only ? "W4A16_NVFP4" : "NVFP4"; }

void add_literal(std::string& regex, char c) {
  if (std::string_view("\\.+^$(){}[]|").find(c) != std::string_view::npos) regex += '\\';
  regex += c;
}

/// Where the class ends that begins with the "[" at `open`; npos: it is a bracket. A "]" that comes first is
/// a member.
size_t class_end(std::string_view glob, size_t open) {
  const bool negated = glob.substr(open + 1).starts_with('!');
  return glob.find(']', open + (negated ? 3 : 2));
}

/// Adds a class of these members. A range that runs backwards has none, to Python's fnmatch; to its
/// expressions it is an error.
void add_class(std::string& regex, std::string_view members, bool negated) {
  std::string all;
  const auto add = [&](char c) {
    if (c == '-') all += '\\';
    add_literal(all, c);
  };
  for (size_t i = 0; i < members.size(); ++i) {
    const bool range = i + 2 < members.size() && members[i + 1] == '-';
    if (!range) {
      add(members[i]);
    } else {
      if (members[i] <= members[i + 2]) add(members[i]), all += '-', add(members[i + 2]);
      i += 2;
    }
  }
  if (all.empty())
    regex += negated ? "." : "(?!)";
  else
    regex += (negated ? "[^" : "[") + all + "]";
}

std::string glob_to_regex(std::string_view glob) {
  if (glob.starts_with("re:") || glob.find_first_of("*?[") == glob.npos) return std::string(glob);
  std::string regex = "re:";
  for (size_t i = 0; i < glob.size(); ++i) {
    const size_t end = glob[i] == '[' ? class_end(glob, i) : glob.npos;
    if (end != glob.npos) {
      const bool negated = glob[i + 1] == '!';
      const size_t first = i + (negated ? 2 : 1);
      add_class(regex, glob.substr(first, end - first), negated);
      i = end;
    } else if (glob[i] == '*') {
      regex += ".*";
    } else if (glob[i] == '?') {
      regex += '.';
    } else {
      add_literal(regex, glob[i]);
    }
  }
  return regex + '$';
}

/// A glob for a regular expression of plain characters, "." and ".*"; nothing for any other.
std::optional<std::string> regex_to_glob(std::string_view regex) {
  std::string glob;
  bool open = true;  // Python's re.match asks for a beginning, not for an end
  if (regex.starts_with('^')) regex.remove_prefix(1);
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '$' && i + 1 == regex.size()) {
      open = false;
    } else if (regex.substr(i).starts_with(".*")) {
      glob += '*';
      ++i;
    } else if (regex[i] == '.') {
      glob += '?';
    } else if (regex[i] == '\\' && i + 1 < regex.size() &&
               std::string_view("*?[\\").find(regex[i + 1]) == std::string_view::npos &&
               std::ispunct(static_cast<unsigned char>(regex[i + 1]))) {
      glob += regex[++i];
    } else if (std::string_view("\\+*?^$(){}[]|").find(regex[i]) == std::string_view::npos) {
      glob += regex[i];
    } else {
      return std::nullopt;
    }
  }
  if (open && !glob.ends_with('*')) glob += '*';
  return glob;
}

std::vector<std::string> strings(const Json& json, const char* key) {
  std::vector<std::string> list;
  if (!json.is_object() || !json.contains(key) || !json[key].is_array()) return list;
  for (const Json& item : json[key]) {
    if (item.is_string()) list.push_back(item.get<std::string>());
  }
  return list;
}

/// Modules that are not quantized though they could be, by their weights' names.
std::vector<std::string> unquantized_names(const Checkpoint& c) {
  std::vector<std::string> names;
  for (const TensorInfo& t : c.tensors()) {
    const bool is_float = t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF32;
    if (!is_float || t.shape.size() < 2 || !t.name.ends_with(".weight")) continue;
    names.push_back(t.name.substr(0, t.name.size() - std::string_view(".weight").size()));
  }
  return names;
}

/// Whether the KV cache is FP8, as either dialect says it. Anything else but none has no words in both.
bool is_fp8_kv_cache(const Json& entry, const Json& hf_quant) {
  const Json* algo = nullptr;
  if (hf_quant.is_object() && hf_quant.contains("quantization")) {
    const Json& q = hf_quant["quantization"];
    if (q.is_object() && q.contains("kv_cache_quant_algo")) algo = &q["kv_cache_quant_algo"];
  }
  if ((algo == nullptr || algo->is_null()) && entry.is_object() && entry.contains("kv_cache_scheme")) {
    algo = &entry["kv_cache_scheme"];
  }
  if (algo == nullptr || algo->is_null()) return false;
  const auto says = [&](const char* key, const Json& value) {
    return algo->is_object() && algo->contains(key) && (*algo)[key] == value;
  };
  const bool fp8 = *algo == "FP8" || (says("num_bits", 8) && says("type", "float"));
  if (!fp8) {
    throw Error(fmt::format("kv_cache_quant_algo: expected FP8 or none, which both dialects have, found {}",
                            algo->dump(-1, ' ', true).substr(0, 256)));
  }
  return true;
}

/// Activations in FP8 beside NVFP4 weights have no words in the other dialect.
void refuse_fp8_activations(const Json& entry, const Json& hf_quant) {
  for (const Json* at :
       {&entry,
        hf_quant.is_object() && hf_quant.contains("quantization") ? &hf_quant["quantization"] : &hf_quant}) {
    const auto algo = at->is_object() ? at->find("quant_algo") : at->end();
    if (at->is_object() && algo != at->end() && *algo == "W4A8_NVFP4_FP8") {
      throw Error(
          "quant_algo: expected NVFP4 or W4A16_NVFP4, which both dialects have, found W4A8_NVFP4_FP8");
    }
  }
}

}  // namespace

bool has_fp8_kv_cache(const Checkpoint& source) {
  return is_fp8_kv_cache(source_quantization(source), source.hf_quant_config());
}

Json modelopt_config(const Nvfp4Config& c) {
  const Json weights = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  const Json activations = c.weight_only ? Json(nullptr) : weights;
  Json entry = {
      {"config_groups",
       {{"group_0", {{"input_activations", activations}, {"weights", weights}, {"targets", {"Linear"}}}}}},
      {"ignore", c.unquantized},
      {"quant_algo", quant_algo(c)},
      {"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
      {"quant_method", "modelopt"}};
  if (c.fp8_kv_cache) entry["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  return entry;
}

Json hf_quant_config(const Nvfp4Config& c) {
  // vLLM wants group_size, kv_cache_quant_algo and exclude_modules, all three.
  return {{"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
          {"quantization",
           {{"quant_algo", quant_algo(c)},
            {"kv_cache_quant_algo", c.fp8_kv_cache ? Json("FP8") : Json(nullptr)},
            {"group_size", 16},
            {"exclude_modules", c.unquantized}}}};
}

Json compressed_tensors_config(const Nvfp4Config& c) {
  const Json weights = {{"num_bits", 4},       {"type", "float"},   {"strategy", "tensor_group"},
                        {"group_size", 16},    {"symmetric", true}, {"dynamic", false},
                        {"observer", "minmax"}};
  Json activations = weights;
  activations["dynamic"] = "local";
  if (c.weight_only) activations = nullptr;
  const Json kv_cache = {{"num_bits", 8},     {"type", "float"},  {"strategy", "tensor"},
                         {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  return {{"config_groups",
           {{"group_0",
             {{"format", "nvfp4-pack-quantized"},
              {"input_activations", activations},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights", weights}}}}},
          {"format", "nvfp4-pack-quantized"},
          {"global_compression_ratio", nullptr},
          {"ignore", c.unquantized},
          {"kv_cache_scheme", c.fp8_kv_cache ? kv_cache : Json(nullptr)},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"version", kCompressedTensorsVersion}};
}

std::vector<std::string> globs_to_regexes(const std::vector<std::string>& globs) {
  std::vector<std::string> regexes;
  for (const std::string& glob : globs) regexes.push_back(glob_to_regex(glob));
  return regexes;
}

std::vector<std::string> regexes_to_globs(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& names) {
  std::vector<std::string> globs;
  for (const std::string& text : patterns) {
    if (!text.starts_with("re:")) {
      globs.push_back(text);
    } else if (const auto glob = regex_to_glob(std::string_view(text).substr(3))) {
      globs.push_back(*glob);
    } else {
      const Pattern pattern(text);
      for (const std::string& name : names) {
        if (pattern.matches(name)) globs.push_back(name);
      }
    }
  }
  return globs;
}

Nvfp4Config translate_config(const Checkpoint& source, bool to_modelopt) {
  const Json entry = source_quantization(source);
  const Json& hf_quant = source.hf_quant_config();
  refuse_fp8_activations(entry, hf_quant);
  Nvfp4Config config;
  config.fp8_kv_cache = is_fp8_kv_cache(entry, hf_quant);
  const auto& modules = source.nvfp4_modules();
  config.weight_only =
      std::none_of(modules.begin(), modules.end(), [](auto& m) { return m.input_scale.has_value(); });
  std::vector<std::string> ignored = strings(entry, "ignore");
  std::string where = quantization_place(source, "ignore");
  const Json quantization = hf_quant.is_object() ? hf_quant.value("quantization", Json()) : Json();
  if (ignored.empty() && quantization.is_object()) {
    ignored = strings(quantization, "exclude_modules");
    where = (source.path() / "hf_quant_config.json").string() + ": quantization.exclude_modules";
  }
  // Where the source names what is quantized instead of what is not, or neither, the rest is named here.
  const Json groups = entry.is_object() ? entry.value("config_groups", Json::object()) : Json::object();
  const bool all_linears = std::all_of(groups.begin(), groups.end(), [](const Json& g) {
    return strings(g, "targets") == std::vector<std::string>{"Linear"};
  });
  const auto names_layers = [](const Json& json) {
    return json.is_object() && json.contains("quantized_layers");
  };
  const std::vector<std::string> names = unquantized_names(source);
  try {
    config.unquantized = to_modelopt ? regexes_to_globs(ignored, names) : globs_to_regexes(ignored);
    if (all_linears && !ignored.empty() && !names_layers(entry) && !names_layers(quantization)) return config;
    const std::vector<Pattern> known = parse_patterns(config.unquantized);
    for (const std::string& name : names) {
      if (!any_matches(known, name)) config.unquantized.push_back(name);
    }
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", where, e.what()));
  }
  return config;
}

}  // namespace twofour
