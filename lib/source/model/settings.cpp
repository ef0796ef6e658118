#include "lib/source/model/settings.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "formats/error.h"
#include "lib/source/config/model_config.h"

namespace twofour {

Settings::Settings(const FamilyShapes& family, const Json& config, std::string where, const Json* whole)
    : config_(&config), whole_(whole), sizes_(family, config, whole), where_(std::move(where)) {}

const Json* Settings::find(std::string_view key) const { return sizes_.stated(key); }

bool Settings::has(std::string_view key) const {
  return config_->is_object() && config_->find(key) != config_->end();
}

void Settings::refuse(std::string_view key, const std::string& expected) const {
  const Json* value = find(key);
  throw Error(fmt::format("{}{}: expected {}, found {}", where_, key, expected,
                          value == nullptr ? "none" : quoted_setting(*value)));
}

int64_t Settings::count(std::string_view key, int64_t least, int64_t layer) const {
  const auto value = sizes_.number(key, layer);
  const Json* configured = find(key);
  if (!value && configured != nullptr && configured->is_number_integer() && *configured > least)
    refuse(key, "a size that a model can have");
  if (!value || *value < least)
    refuse(key, least > 0 ? "a whole number above 0" : "a whole number not below 0");
  return *value;
}

double Settings::positive(std::string_view key, double otherwise, bool zero) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!std::isfinite(number) || number < 0 || (number == 0 && !zero))
    refuse(key, zero ? "a finite number not below 0" : "a finite number above 0");
  return number;
}

bool Settings::yes(std::string_view key, bool otherwise) const {
  const Json* value = find(key);
  // transformers takes null for false, other loaders take it for the default.
  if (value == nullptr && otherwise && has(key)) refuse(key, "true or false");
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string Settings::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(key, "text");
  return value->get<std::string>();
}

bool Settings::has_tied_head() const {
  const char* kKey = "tie_word_embeddings";
  const bool configured = yes(kKey, sizes_.number(kKey).value_or(0) != 0);
  if (whole_ == nullptr || !whole_->is_object()) return configured;
  const auto at = whole_->find(kKey);
  return at != whole_->end() && at->is_boolean() ? at->get<bool>() : configured;
}

Settings Settings::below(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_object()) refuse(key, "an object");
  return {sizes_.family(), *value, fmt::format("{}{}.", where_, key)};
}

}  // namespace twofour
