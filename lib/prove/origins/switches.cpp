#include "lib/prove/origins/switches.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "formats/families/family_rows.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_number(const std::string& part) {
  return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
}

/// The name without the prefix of the language model, and with # in place of numbers.
std::string own_name(std::string_view tensor) {
  std::string name;
  bool is_prefix = true;
  for (const std::string& part : parts_of(tensor)) {
    is_prefix = is_prefix && (part == "model" || part == "language_model");
    if (!is_prefix) name += (name.empty() ? "" : ".") + (is_number(part) ? "#" : part);
  }
  return name;
}

std::set<std::string> own_names(const Checkpoint& c) {
  std::set<std::string> names;
  for (const TensorInfo& t : c.tensors()) names.insert(own_name(t.name));
  return names;
}

/// True if a name is the name of a parameter, or of a tensor that stores its values.
bool is_of(const std::string& name, const std::string& parameter) {
  return name.starts_with(parameter) &&
         (name.size() == parameter.size() || name[parameter.size()] == '.' || name[parameter.size()] == '_');
}

bool is_off(const Json& value) { return value.is_null() || value == Json(false) || value == Json(0); }

bool has_compressor(const Checkpoint& c, size_t layer) {
  return c.find(fmt::format("layers.{}.attn.compressor.ape", layer)).has_value();
}

}  // namespace

Switches::Switches(const Checkpoint& base, const Checkpoint& artifact, const Checkpoint* donor)
    : base_(base),
      artifact_(artifact),
      donor_(donor),
      model_(find_language_model(base.config())),
      before_(own_names(base)),
      now_(own_names(artifact)) {}

bool Switches::has(const std::set<std::string>& names, const std::string& key) const {
  const auto any = [&](std::string_view parameter) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return is_of(name, own_name(parameter)); });
  };
  const std::vector<FamilyRow> rows = family_rows(model_->family->parameters);
  return std::any_of(rows.begin(), rows.end(), [&](const FamilyRow& row) {
    return has_term(row.when, key) && !has_term(row.when, "may") && any(row.module());
  });
}

bool Switches::explains_ratios(const Json& before, const Json& now) const {
  if (!before.is_array() || !now.is_array() || before.size() != now.size()) return false;
  const Json theirs = donor_ ? model_setting(donor_->config(), "compress_ratios") : Json();
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] == before[i]) continue;
    const bool had = has_compressor(base_, i), has = has_compressor(artifact_, i);
    const bool went = had && !has && now[i] == Json(0);
    const bool came = !had && has && theirs.is_array() && i < theirs.size() && now[i] == theirs[i];
    if (!went && !came) return false;
  }
  return true;
}

bool Switches::explains(const std::string& key, const Json& before, const Json& now) const {
  if (key == "compress_ratios") return explains_ratios(before, now);
  if (!model_) return false;
  const bool had = has(before_, key), has_now = has(now_, key);
  if (had && !has_now) return is_off(now);
  if (had || !has_now || donor_ == nullptr || is_off(now)) return false;
  const Json& theirs = model_setting(donor_->config(), key);
  return theirs.is_null() || theirs == now;
}

}  // namespace twofour
