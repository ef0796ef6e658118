#include <fmt/format.h>

#include <algorithm>

#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/graft/quantization_entries.h"
#include "lib/graft/unquantized_lists.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// True if two schemes mean the same. They do if the algorithm and the settings that both have are equal.
bool same_scheme(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  if (a.contains("quant_algo") != b.contains("quant_algo")) return false;
  const bool algorithms = a.contains("quant_algo");
  for (const auto& [key, value] : a.items()) {
    const auto other = b.find(key);
    if (other == b.end()) {
      if (!algorithms) return false;
    } else if (key == "quant_algo" && value.is_string() && other->is_string()) {
      if (lookups::algorithm_of(a) != lookups::algorithm_of(b)) return false;
    } else if (value != *other) {
      return false;
    }
  }
  return algorithms || a.size() == b.size();
}

/// Returns a regular expression that matches only `text`.
std::string escaped(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (std::string_view("\\.+*?^$(){}[]|").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

}  // namespace

Json* QuantizationEntries::list_for(Json& holder) {
  if (const auto lists = unquantized_lists(holder); !lists.empty()) return lists.front();
  const bool nested = !quantization_entry(config_) || &holder != holders().front();
  const char* key = dialect() == Dialect::kFp8Like ? "modules_to_not_convert"
                    : nested                       ? "exclude_modules"
                                                   : "ignore";
  holder[key] = Json::array();
  return &holder[key];
}

void QuantizationEntries::add_unquantized(const std::vector<std::string>& modules,
                                          std::vector<std::string> entries) {
  // If all experts of a block are added in floats, one pattern names them. Loaders look up the block or its
  // parts.
  for (const std::string& module : modules) {
    const auto parsed = parse_module_name(module);
    std::string entry = module;
    if (parsed && parsed->expert >= 0) {
      const std::string block(parsed->block);
      if (dialect() == Dialect::kCompressedTensors) entry = "re:^" + escaped(block) + ".*";
      if (dialect() == Dialect::kModelOpt) entry = block + "*";
    }
    if (entries.empty() || entries.back() != entry) entries.push_back(entry);
  }
  for (Json* holder : holders()) {
    Json* list = list_for(*holder);
    for (const std::string& entry : entries) {
      if (std::find(list->begin(), list->end(), Json(entry)) == list->end()) list->push_back(entry);
    }
  }
}

/// Returns entries of the donor's lists that match some modules of `floats`, but no quantized module and no
/// module of the base. Removes the modules that they match from `floats`.
std::vector<std::string> QuantizationEntries::take_entries(const QuantizationEntries& donor,
                                                           const std::vector<ComingModule>& coming,
                                                           const std::vector<std::string>& staying,
                                                           std::vector<std::string>& floats) {
  std::vector<std::string> entries;
  if (donor.dialect() != dialect()) return entries;
  const TensorNames of_base(staying);
  const auto is_foreign = [&](const std::string& entry) {
    return of_base.matched_by(entry) || std::any_of(coming.begin(), coming.end(), [&](const auto& m) {
             return !m.scheme.is_null() && donor.takes(entry, m.name);
           });
  };
  for (const Json* holder : donor.holders()) {
    for (const Json* list : unquantized_lists(*holder)) {
      for (const std::string& entry : strings_of(*list)) {
        const auto is_taken = [&](const std::string& m) { return donor.takes(entry, m); };
        if (entry.empty() || std::none_of(floats.begin(), floats.end(), is_taken) || is_foreign(entry))
          continue;
        entries.push_back(entry);
        std::erase_if(floats, is_taken);
      }
    }
  }
  return entries;
}

void QuantizationEntries::unlist(const std::vector<ComingModule>& quantized,
                                 const std::vector<std::string>& linears) {
  const auto takes_one = [&](const std::string& entry) {
    return std::any_of(quantized.begin(), quantized.end(),
                       [&](const ComingModule& m) { return takes(entry, m.name); });
  };
  for (Json* holder : holders()) {
    for (Json* list : unquantized_lists(*holder)) {
      Json left = Json::array();
      for (const Json& item : *list) {
        const std::string text = text_of(item);
        if (text.empty() || !takes_one(text)) {
          left.push_back(item);
          continue;
        }
        for (const std::string& linear : linears) {
          if (takes(text, linear)) left.push_back(linear);
        }
      }
      *list = std::move(left);
    }
  }
}

/// Writes an entry of `quantized_layers`, and adds its name to the group of `config_groups` with the same
/// scheme.
void QuantizationEntries::set_scheme(const ComingModule& module, const QuantizationEntries& donor) {
  const auto all = holders();
  const auto of_donor = donor.holders();
  for (size_t i = 0; i < all.size(); ++i) {
    Json* holder = all[i];
    // The two files may spell an algorithm differently.
    const Json* theirs = of_donor.size() == all.size() ? of_donor[i] : nullptr;
    const Json scheme = theirs == nullptr || !theirs->contains("quantized_layers")
                            ? module.scheme
                            : (*theirs)["quantized_layers"].value(module.entry, module.scheme);
    const auto layers = holder->find("quantized_layers");
    if (layers == holder->end() || !layers->is_object() || layers->contains(module.name)) continue;
    const auto groups = holder->find("config_groups");
    if (groups != holder->end() && groups->is_object()) {
      for (Json& group : *groups) {
        if (!group.is_object() || !is_list(group, "targets") || group["targets"].empty()) continue;
        const Json& first = group["targets"][0];
        const auto like = first.is_string() ? layers->find(first.get<std::string>()) : layers->end();
        if (like == layers->end() || *like != scheme) continue;
        group["targets"].push_back(module.name);
        break;
      }
    }
    (*layers)[module.name] = scheme;
  }
}

std::string QuantizationEntries::cannot_say(const ComingModule& module, const Json& configured) const {
  const auto shown = [](const Json& scheme) {
    return scheme.is_null() ? std::string("none") : json_quote_short(json_line(scheme));
  };
  return fmt::format(
      "{}: expected a quantization_config that can describe the quantization of {} ({}), found one that "
      "describes {}; convert the donor to the base's format first",
      where_, module.name, shown(module.scheme), shown(configured));
}

std::optional<std::string> QuantizationEntries::add(const std::vector<ComingModule>& coming,
                                                    const QuantizationEntries& donor,
                                                    const std::vector<std::string>& linears,
                                                    const std::vector<std::string>& staying) {
  const Dialect kind = dialect();
  std::vector<ComingModule> quantized;
  std::vector<std::string> floats;
  for (const ComingModule& m : coming) {
    if (!m.scheme.is_null()) quantized.push_back(m);
  }
  unlist(quantized, linears);
  if (kind == Dialect::kModelOptMixed) {
    const TensorNames names(staying);
    for (const ComingModule& m : quantized) {
      const bool above = m.entry != m.name && !m.entry.empty() && !names.has(m.entry);
      if (m.scheme.is_object() && m.scheme.contains("quant_algo"))
        set_scheme({above ? m.entry : m.name, m.scheme, m.entry}, donor);
    }
  }
  for (const ComingModule& m : coming) {
    const Json configured = scheme_of(m.name).scheme;
    if (same_scheme(configured, m.scheme)) continue;
    if (kind == Dialect::kFp8Like && m.scheme.is_null() && same_scheme(configured, m.configured)) continue;
    if (!m.scheme.is_null() || kind == Dialect::kModelOptMixed) return cannot_say(m, configured);
    floats.push_back(m.name);
  }
  if (kind == Dialect::kNone || (kind == Dialect::kOther && floats.empty())) return std::nullopt;
  if (kind == Dialect::kOther) {
    return fmt::format(
        "{}: expected a quantization_config with a list of modules that are not quantized, for {}, "
        "found quant_method {}; convert the base first",
        where_, floats.front(), quoted_setting(holders().front()->value("quant_method", Json())));
  }
  std::vector<std::string> unlisted;
  for (const ComingModule& m : coming) {
    if (m.scheme.is_null() && !is_unquantized(m.name)) unlisted.push_back(m.name);
  }
  std::vector<std::string> entries = take_entries(donor, coming, staying, unlisted);
  std::erase_if(floats, [&](const std::string& name) {
    return std::find(unlisted.begin(), unlisted.end(), name) == unlisted.end();
  });
  if (!floats.empty() || !entries.empty()) add_unquantized(floats, std::move(entries));
  return std::nullopt;
}

}  // namespace twofour
