#include "lib/graft/quantization_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_map>

#include "formats/error.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/graft/selection.h"
#include "lib/names/config_pattern.h"

namespace twofour {
namespace {

/// Lists of modules that are not quantized, in every dialect.
constexpr const char* kLists[] = {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"};

bool is_list(const Json& holder, const char* key) {
  const auto at = holder.find(key);
  return at != holder.end() && at->is_array();
}

/// A module and the modules above it, the nearest first.
std::vector<std::string> with_ancestors(const std::string& module) {
  std::vector<std::string> names{module};
  for (size_t dot = module.rfind('.'); dot != module.npos && dot > 0; dot = module.rfind('.', dot - 1))
    names.push_back(module.substr(0, dot));
  return names;
}

/// Whether a name of a list takes a module: its own, that of a module above it, or the end of one.
bool names_module(const std::string& entry, const std::string& module) {
  return module == entry || module.starts_with(entry + ".") || module.ends_with("." + entry) ||
         module.find("." + entry + ".") != module.npos;
}

/// Sorted names of tensors, asked for what config entries match.
class TensorNames {
 public:
  explicit TensorNames(const std::vector<std::string>& sorted) : names_(sorted) {
    for (const std::string& name : sorted) tops_.insert(name.substr(0, name.find('.')));
  }
  /// Whether there is a tensor of that name, or below a module of that name.
  bool has(const std::string& name) const {
    const auto at = std::lower_bound(names_.begin(), names_.end(), name);
    if (at != names_.end() && *at == name) return true;
    const auto below = std::lower_bound(names_.begin(), names_.end(), name + ".");
    return below != names_.end() && below->starts_with(name + ".");
  }
  /// Whether an entry of a list matches any module.
  bool matched_by(const std::string& entry) const {
    if (!is_wild(entry)) {
      if (has(entry)) return true;
      if (tops_.contains(entry.substr(0, entry.find('.')))) return false;  // a whole name
      return any([&](const std::string& module) { return names_module(entry, module); });
    }
    const ConfigPattern pattern(entry);
    if (!pattern.known()) return true;
    return any([&](const std::string& module) { return pattern.matches(module); });
  }

 private:
  template <class F>
  bool any(F&& f) const {
    std::string last;
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& tensor) {
      const std::string module(module_of(tensor));
      if (f(tensor)) return true;
      if (module == last) return false;
      last = module;
      return f(module);
    });
  }

  const std::vector<std::string>& names_;
  std::set<std::string> tops_;
};

/// The elements of an array that pass.
Json filtered(const Json& array, const std::function<bool(const Json&)>& stays) {
  Json left = Json::array();
  for (const Json& item : array) {
    if (stays(item)) left.push_back(item);
  }
  return left;
}

/// ModelOpt's words for one algorithm as an entry of `quantized_layers`.
Json entry_of(const Json& holder) {
  Json entry = Json::object();
  for (const char* key : {"quant_algo", "group_size", "has_zero_point", "pre_quant_scale"}) {
    if (holder.contains(key) && !holder[key].is_null()) entry[key] = holder[key];
  }
  // In the flat form the size is in the groups.
  for (const Json& group : holder.value("config_groups", Json::object())) {
    const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
    if (!entry.contains("group_size") && weights.is_object() && weights.contains("group_size"))
      entry["group_size"] = weights["group_size"];
  }
  return entry;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// Whether two schemes mean the same: what both say is equal, and the algorithm is the same.
bool same_scheme(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  if (a.contains("quant_algo") != b.contains("quant_algo")) return false;
  const bool algorithms = a.contains("quant_algo");
  for (const auto& [key, value] : a.items()) {
    const auto other = b.find(key);
    if (other == b.end()) {
      if (!algorithms) return false;
    } else if (key == "quant_algo" && value.is_string() && other->is_string()) {
      if (upper(value.get<std::string>()) != upper(other->get<std::string>())) return false;
    } else if (value != *other) {
      return false;
    }
  }
  return algorithms || a.size() == b.size();
}

/// A text as a regular expression that matches it alone.
std::string escaped(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (std::string_view("\\.+*?^$(){}[]|").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

}  // namespace

QuantizationWords::QuantizationWords(Json config, Json hf_quant_config, std::string where)
    : config_(std::move(config)), hf_quant_(std::move(hf_quant_config)), where_(std::move(where)) {}

std::vector<const Json*> QuantizationWords::holders() const {
  std::vector<const Json*> all;
  if (const auto entry = quantization_entry(config_)) all.push_back(&entry->value);
  if (hf_quant_.is_object()) {
    const auto nested = hf_quant_.find("quantization");
    all.push_back(nested != hf_quant_.end() && nested->is_object() ? &*nested : &hf_quant_);
  }
  return all;
}

std::vector<Json*> QuantizationWords::holders() {
  std::vector<Json*> all;
  // They point into this object's own values.
  for (const Json* holder : std::as_const(*this).holders()) all.push_back(const_cast<Json*>(holder));
  return all;
}

QuantizationWords::Dialect QuantizationWords::dialect() const {
  const auto all = holders();
  if (all.empty()) return Dialect::kNone;
  for (const Json* holder : all) {
    const auto algo = holder->find("quant_algo");
    if (algo != holder->end() && algo->is_string()) {
      return upper(algo->get<std::string>()) == "MIXED_PRECISION" ? Dialect::kModelOptMixed
                                                                  : Dialect::kModelOpt;
    }
  }
  const Json method = all[0]->value("quant_method", Json());
  if (method == "compressed-tensors") return Dialect::kCompressedTensors;
  for (const char* name : {"fp8", "mxfp8", "mxfp4", "awq"}) {
    if (method == name) return Dialect::kFp8Like;
  }
  return Dialect::kOther;
}

/// Whether an entry of a list of unquantized modules takes a module.
bool QuantizationWords::takes(const std::string& entry, const std::string& module) const {
  if (!is_wild(entry)) return names_module(entry, module);
  return patterns_.try_emplace(entry, entry).first->second.matches(module);
}

bool QuantizationWords::is_unquantized(const std::string& module) const {
  for (const Json* holder : holders()) {
    for (const char* key : kLists) {
      if (!is_list(*holder, key)) continue;
      for (const Json& entry : (*holder)[key]) {
        if (entry.is_string() && takes(entry.get<std::string>(), module)) return true;
      }
    }
  }
  return false;
}

ComingModule QuantizationWords::scheme_of(const std::string& module) const {
  const Dialect kind = dialect();
  if (kind == Dialect::kNone || is_unquantized(module)) return {module, nullptr};
  const auto all = holders();
  if (kind == Dialect::kModelOptMixed) {
    for (const std::string& name : with_ancestors(module)) {
      for (const Json* holder : all) {
        const auto layers = holder->find("quantized_layers");
        if (layers == holder->end()) continue;
        if (const auto at = layers->find(name); at != layers->end()) return {module, *at, name};
      }
    }
    return {module, nullptr};
  }
  if (kind == Dialect::kModelOpt) {
    Json entry = entry_of(*all.back());
    if (all.size() > 1) {
      Json first = entry_of(*all.front());
      for (const auto& [key, value] : entry.items()) first[key] = value;
      entry = std::move(first);
    }
    return {module, entry, module};
  }
  if (kind == Dialect::kCompressedTensors) {
    const Json groups = all[0]->value("config_groups", Json::object());
    for (const Json& group : groups) {
      for (const Json& target : group.value("targets", Json::array())) {
        const auto text = target.get<std::string>();
        const bool hit = text == "Linear" || (is_wild(text) ? takes(text, module) : text == module);
        if (!hit) continue;
        Json scheme = group;
        scheme.erase("targets");
        if (!scheme.contains("format")) scheme["format"] = all[0]->value("format", Json());
        return {module, scheme, module};
      }
    }
    return {module, nullptr};
  }
  Json scheme = *all[0];
  for (const char* key : kLists) scheme.erase(key);
  return {module, scheme, module};
}

void QuantizationWords::forget(const std::vector<std::string>& before,
                               const std::vector<std::string>& staying,
                               const std::vector<std::string>& after) {
  const TensorNames old_names(before), left_names(staying), new_names(after);
  const auto stays = [&](const Json& item) {
    if (!item.is_string()) return true;
    const auto text = item.get<std::string>();
    return new_names.matched_by(text) || !old_names.matched_by(text);
  };
  for (Json* holder : holders()) {
    for (const char* key : kLists) {
      if (is_list(*holder, key)) (*holder)[key] = filtered((*holder)[key], stays);
    }
    if (const auto layers = holder->find("quantized_layers");
        layers != holder->end() && layers->is_object()) {
      std::erase_if(layers->items(), [&](const Json::Member& m) {
        return old_names.has(m.first) && !left_names.has(m.first);
      });
    }
    const auto groups = holder->find("config_groups");
    if (groups == holder->end() || !groups->is_object()) continue;
    std::erase_if(groups->items(), [&](Json::Member& group) {
      if (!group.second.is_object() || !is_list(group.second, "targets")) return false;
      const size_t targets = group.second["targets"].size();
      group.second["targets"] = filtered(group.second["targets"], [&](const Json& target) {
        if (!target.is_string() || is_wild(target.get<std::string>())) return true;
        const auto name = target.get<std::string>();
        return left_names.has(name) || !old_names.has(name);
      });
      return targets > 0 && group.second["targets"].empty();
    });
  }
}

void QuantizationWords::rename(const std::vector<std::string>& modules, const Rename& new_name) {
  // A pattern stays if it takes a module under its new name where it took it under the old one.
  const auto renamed_pattern = [&](const std::string& text) -> std::optional<std::vector<std::string>> {
    const ConfigPattern pattern(text);
    if (!pattern.known() || !pattern.tells_digits()) return std::nullopt;
    bool same = true;
    std::vector<std::string> names;
    for (const std::string& module : modules) {
      const auto now = new_name(module);
      const bool took = pattern.matches(module);
      if (took && now) names.push_back(*now);
      same = same && (!now || pattern.matches(*now) == took);
    }
    return same ? std::nullopt : std::optional(names);
  };
  // Names above a module, of an expert too, are renamed as one below them.
  std::unordered_map<std::string, std::optional<std::string>> above;
  for (const std::string& module : modules) {
    const auto now = new_name(module);
    above[module] = now;
    const auto old_names = with_ancestors(module);
    const auto new_names = now ? with_ancestors(*now) : std::vector<std::string>{};
    for (size_t i = 1; i < old_names.size(); ++i) {
      auto& known = above[old_names[i]];
      if (now) known = new_names[i];
    }
  }
  const auto rename_list = [&](Json& list) {
    Json left = Json::array();
    for (const Json& item : list) {
      const std::string text = item.is_string() ? item.get<std::string>() : std::string();
      if (const auto at = above.find(text); at != above.end()) {
        if (at->second) left.push_back(*at->second);
      } else if (const auto names = is_wild(text) ? renamed_pattern(text) : std::nullopt) {
        for (const std::string& name : *names) left.push_back(name);
      } else {
        left.push_back(item);
      }
    }
    list = std::move(left);
  };
  for (Json* holder : holders()) {
    for (const char* key : kLists) {
      if (is_list(*holder, key)) rename_list((*holder)[key]);
    }
    const auto groups = holder->find("config_groups");
    if (groups != holder->end() && groups->is_object()) {
      for (Json& group : *groups) {
        if (group.is_object() && is_list(group, "targets")) rename_list(group["targets"]);
      }
    }
    const auto layers = holder->find("quantized_layers");
    if (layers == holder->end() || !layers->is_object()) continue;
    Json::Object left;
    for (Json::Member& member : layers->items()) {
      const auto at = above.find(member.first);
      if (at != above.end() && !at->second) continue;
      left.emplace_back(at == above.end() ? member.first : *at->second, std::move(member.second));
    }
    layers->items() = std::move(left);
  }
}

Json* QuantizationWords::list_for(Json& holder) {
  for (const char* key : kLists) {
    if (is_list(holder, key)) return &holder[key];
  }
  const bool nested = !quantization_entry(config_) || &holder != holders().front();
  const char* key = dialect() == Dialect::kFp8Like ? "modules_to_not_convert"
                    : nested                       ? "exclude_modules"
                                                   : "ignore";
  holder[key] = Json::array();
  return &holder[key];
}

void QuantizationWords::add_unquantized(const std::vector<std::string>& modules,
                                        std::vector<std::string> entries) {
  // A block of experts that all come as floats is one pattern; loaders ask for the block or for its parts.
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

/// The donor's entries of lists that take some of `floats` and nothing that is quantized or of the base.
/// Leaves the floats that none takes.
std::vector<std::string> QuantizationWords::take_entries(const QuantizationWords& donor,
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
    for (const char* key : kLists) {
      if (!is_list(*holder, key)) continue;
      for (const Json& item : (*holder)[key]) {
        const std::string entry = item.is_string() ? item.get<std::string>() : std::string();
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

void QuantizationWords::unlist(const std::vector<ComingModule>& quantized,
                               const std::vector<std::string>& linears) {
  const auto takes_one = [&](const std::string& entry) {
    return std::any_of(quantized.begin(), quantized.end(),
                       [&](const ComingModule& m) { return takes(entry, m.name); });
  };
  for (Json* holder : holders()) {
    for (const char* key : kLists) {
      if (!is_list(*holder, key)) continue;
      Json left = Json::array();
      for (const Json& item : (*holder)[key]) {
        const std::string text = item.is_string() ? item.get<std::string>() : std::string();
        if (text.empty() || !takes_one(text)) {
          left.push_back(item);
          continue;
        }
        for (const std::string& linear : linears) {
          if (takes(text, linear)) left.push_back(linear);
        }
      }
      (*holder)[key] = std::move(left);
    }
  }
}

/// Writes an entry of `quantized_layers`, and its name into the group of `config_groups` that has others like
/// it.
void QuantizationWords::set_scheme(const ComingModule& module, const QuantizationWords& donor) {
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

std::string QuantizationWords::cannot_say(const ComingModule& module, const Json& said) const {
  const auto shown = [](const Json& scheme) {
    return scheme.is_null() ? std::string("none") : json_quote_short(json_line(scheme));
  };
  return fmt::format(
      "{}: expected a quantization_config that can say how {} is quantized ({}), found one that "
      "says {}; convert the donor to the base's format first",
      where_, module.name, shown(module.scheme), shown(said));
}

std::optional<std::string> QuantizationWords::add(const std::vector<ComingModule>& coming,
                                                  const QuantizationWords& donor,
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
    const Json said = scheme_of(m.name).scheme;
    if (same_scheme(said, m.scheme)) continue;
    if (kind == Dialect::kFp8Like && m.scheme.is_null() && same_scheme(said, m.said)) continue;
    if (!m.scheme.is_null() || kind == Dialect::kModelOptMixed) return cannot_say(m, said);
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
