#include "formats/families/sizes.h"

#include <algorithm>
#include <charconv>

#include "formats/json/access.h"

namespace twofour {
namespace {

/// The largest accepted size. No model comes near it. Products are checked nevertheless.
constexpr int64_t kLargest = int64_t{1} << 40;
/// The deepest nesting of defaults. A default may depend on keys that have defaults themselves. The rows need
/// three levels.
constexpr int kDeepest = 6;

/// The size to use, in any family, when a key is null in a config. Source: __post_init__ of the
/// configurations.
std::string_view taken_for_null(std::string_view key) {
  if (key == "num_key_value_heads") return "num_attention_heads";
  if (key == "head_dim") return "hidden_size/num_attention_heads";
  if (key == "moe_latent_size") return "hidden_size";
  return {};
}

std::optional<int64_t> checked(std::optional<int64_t> value) {
  return value && *value >= 0 && *value <= kLargest ? value : std::nullopt;
}

std::optional<int64_t> count_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kLargest))
    return std::nullopt;
  if (!value.is_number_integer()) return std::nullopt;
  return checked(value.get<int64_t>());
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

int64_t number_of(std::string_view digits) {
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

const Json& element(const Json& value, int64_t layer) {
  if (!value.is_array() || layer < 0 || static_cast<size_t>(layer) >= value.size()) return value;
  return value[static_cast<size_t>(layer)];
}

}  // namespace

FamilySizes::FamilySizes(const FamilyShapes& family, const Json& config, const Json* whole)
    : family_(&family),
      rows_(std::make_shared<const std::vector<FamilyRow>>(family_rows(family.parameters))),
      config_(&config),
      whole_(whole),
      defaults_(family_defaults(family)) {}

Json family_defaults(const FamilyShapes& family) {
  Json defaults = Json::object();
  for_each_term(family.defaults, [&](std::string_view term) {
    const size_t equals = term.find('=');
    Json& value = defaults[std::string(term.substr(0, equals))];
    const std::string_view configured = term.substr(equals + 1);
    if (is_digits(configured)) {
      value = number_of(configured);
    } else if (configured == "true" || configured == "false") {
      value = configured == "true";
    } else {
      value = std::string(configured);
    }
  });
  return defaults;
}

const Json* FamilySizes::stated(std::string_view key) const {
  for (const Json* config : {config_, whole_}) {
    if (config == nullptr) continue;
    if (const auto at = config->find(key); at != config->end()) return at->is_null() ? nullptr : &*at;
    const size_t dot = key.find('.');
    const auto object = dot == key.npos ? config->end() : config->find(key.substr(0, dot));
    if (object == config->end()) continue;
    const Json& value = member(*object, key.substr(dot + 1));
    return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

bool FamilySizes::is_list(std::string_view key) const {
  const Json* value = stated(key);
  return value != nullptr && value->is_array();
}

const Json* FamilySizes::default_of(std::string_view key) const {
  const auto at = defaults_.find(key);
  return at == defaults_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<int64_t> FamilySizes::number(std::string_view key, int64_t layer) const {
  return number_at(key, layer, 0);
}

std::optional<int64_t> FamilySizes::size(std::string_view expression, int64_t layer) const {
  return size_at(expression, layer, 0);
}

std::optional<int64_t> FamilySizes::number_at(std::string_view key, int64_t layer, int depth) const {
  if (depth > kDeepest) return std::nullopt;
  if (const auto set = numbers_.find(key); set != numbers_.end()) return set->second;
  if (const Json* configured = stated(key)) return count_of(element(*configured, layer));
  if (key == "num_hidden_layers" && default_of(key) == nullptr) {
    for (const char* list : {"layers_block_type", "layer_types"}) {
      if (is_list(list)) return static_cast<int64_t>(stated(list)->size());
    }
    if (const auto pattern = text("hybrid_override_pattern"); !pattern.empty())
      return static_cast<int64_t>(pattern.size());
  }
  const Json* value = config_->is_object() && config_->contains(key) ? nullptr : default_of(key);
  if (value != nullptr && value->is_string())
    return size_at(value->get_ref<const std::string&>(), layer, depth + 1);
  if (value != nullptr) return count_of(*value);
  const std::string_view instead = taken_for_null(key);
  return instead.empty() ? std::nullopt : size_at(instead, layer, depth + 1);
}

std::optional<int64_t> FamilySizes::size_at(std::string_view expression, int64_t layer, int depth) const {
  int64_t sum = 0;
  std::optional<int64_t> product = 1;
  char sign = '*';
  while (true) {
    const size_t end = std::min(expression.find_first_of("+*/"), expression.size());
    const std::string_view factor = expression.substr(0, end);
    std::optional<int64_t> value;
    if (is_digits(factor)) {
      value = number_of(factor);
    } else {
      value = number_at(factor, layer, depth);
    }
    int64_t result = 0;
    if (!value || !product) return std::nullopt;
    if (sign == '/') {
      if (*value == 0 || *product % *value != 0) return std::nullopt;
      result = *product / *value;
    } else if (__builtin_mul_overflow(*product, *value, &result)) {
      return std::nullopt;
    }
    product = checked(result);
    if (!product) return std::nullopt;
    if (end == expression.size()) return checked(sum + *product);
    if (expression[end] == '+') {
      sum += *product;
      if (sum > kLargest) return std::nullopt;
      product = 1;
    }
    sign = expression[end] == '/' ? '/' : '*';
    expression = expression.substr(end + 1);
  }
}

std::string_view FamilySizes::text(std::string_view key, int64_t layer) const {
  const Json* value = stated(key);
  if (value == nullptr) return {};
  const Json& one = element(*value, layer);
  return one.is_string() ? std::string_view(one.get_ref<const std::string&>()) : std::string_view();
}

bool FamilySizes::lists(std::string_view key, int64_t number) const {
  const Json* list = stated(key);
  return list != nullptr && list->is_array() &&
         std::any_of(list->begin(), list->end(),
                     [&](const Json& item) { return item.is_number_integer() && item == number; });
}

std::string_view FamilySizes::layer_class(int64_t layer, bool is_mlp) const {
  if (const auto set = classes_.find({layer, is_mlp}); set != classes_.end()) return set->second;
  const auto of = (is_mlp ? family_->mlp : family_->mixer).of;
  return of == nullptr || layer < 0 ? std::string_view() : of(*this, layer);
}

bool FamilySizes::holds(std::string_view condition, int64_t layer) const {
  bool all = true;
  for_each_term(condition, [&](std::string_view term) {
    if (term == "may" || term == "alias") return;
    const bool is_not = term.starts_with('!');
    if (is_not) term = term.substr(1);
    bool holds = false;
    if (term == "@draft") {
      holds = layer >= number("num_hidden_layers").value_or(kLargest);
    } else if (term.starts_with('@')) {
      holds = mlp(layer) == term.substr(1) || mixer(layer) == term.substr(1);
    } else if (const size_t equals = term.find('='); equals != term.npos) {
      const std::string_view key = term.substr(0, equals), value = term.substr(equals + 1);
      holds = is_digits(value) ? number(key, layer) == number_of(value) : text(key, layer) == value;
    } else if (const size_t colon = term.find(':'); colon != term.npos) {
      holds = layer >= 0 && lists(term.substr(0, colon), layer + number_of(term.substr(colon + 1)));
    } else {
      holds = number(term, layer).value_or(0) != 0;
    }
    all = all && holds != is_not;
  });
  return all;
}

void FamilySizes::add_keys(std::string_view expression, std::vector<std::string>& keys, int depth) const {
  if (depth > kDeepest) return;
  for_each_factor(expression, [&](std::string_view factor) {
    if (is_digits(factor) || factor == kUnconfiguredSize) return;
    if (stated(factor) == nullptr && numbers_.find(factor) == numbers_.end()) {
      const Json* value = config_->is_object() && config_->contains(factor) ? nullptr : default_of(factor);
      const std::string_view instead = value == nullptr ? taken_for_null(factor)
                                       : value->is_string()
                                           ? std::string_view(value->get_ref<const std::string&>())
                                           : std::string_view();
      if (!instead.empty()) return add_keys(instead, keys, depth + 1);
    }
    if (std::find(keys.begin(), keys.end(), factor) == keys.end()) keys.emplace_back(factor);
  });
}

std::vector<std::string> FamilySizes::keys(std::string_view expression) const {
  std::vector<std::string> keys;
  add_keys(expression, keys, 0);
  return keys;
}

}  // namespace twofour
