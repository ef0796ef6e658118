#include "lib/checkpoint/zero_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "formats/error.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/names/lookup_parts.h"

namespace twofour {
namespace {

constexpr std::string_view kZeroPointsWords[] = {"stored", "symmetric", "v2"};

std::optional<bool> flag_of(const Json& entry, const char* key) {
  const Json& value = lookups::member(entry, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

/// Whether an entry of "dynamic" or "extra_config" is for a module: a name, or an expression anywhere in it.
bool is_for(const std::string& text, const std::string& module) {
  if (text == module) return true;
  const std::string expression = text.starts_with("+:") || text.starts_with("-:") ? text.substr(2) : text;
  const ConfigPattern pattern("re:.*" + expression);
  return pattern.known() && pattern.matches(module);
}

/// "sym" of the exception for a module; nothing where no exception says it.
std::optional<bool> symmetry_of_exception(const Json& words, const std::string& module) {
  for (const char* key : {"dynamic", "extra_config"}) {
    const Json& exceptions = lookups::member(words, key);
    if (!exceptions.is_object()) continue;
    for (const auto& [text, entry] : exceptions.items()) {
      const auto own = flag_of(entry, "sym");
      if (own && is_for(text, module)) return own;
    }
  }
  return std::nullopt;
}

}  // namespace

std::span<const std::string_view> zero_points_words() { return kZeroPointsWords; }

std::string_view zero_points_word(ZeroPoints zero_points) {
  return zero_points == ZeroPoints::kAsStated ? std::string_view()
                                              : kZeroPointsWords[static_cast<size_t>(zero_points) - 1];
}

ZeroPoints parse_zero_points(std::string_view word) {
  if (word.empty()) return ZeroPoints::kAsStated;
  const auto at = std::find(std::begin(kZeroPointsWords), std::end(kZeroPointsWords), word);
  if (at == std::end(kZeroPointsWords)) {
    throw Error(fmt::format("zero points: expected stored, symmetric or v2, found {}",
                            json_quote_short(std::string(word))));
  }
  return static_cast<ZeroPoints>(at - std::begin(kZeroPointsWords) + 1);
}

struct StatedSymmetry::Groups : lookups::TargetGroups {
  using TargetGroups::TargetGroups;
};

StatedSymmetry::StatedSymmetry(Json quantization) {
  // A conversion of ours keeps the source's words below "base".
  const bool ours = lookups::text_of(quantization, "quant_method") == "twofour";
  words_ = std::make_unique<const Json>(ours ? lookups::member(quantization, "base") : quantization);
  if (lookups::member(*words_, "config_groups").is_object()) groups_ = std::make_unique<Groups>(*words_);
}
StatedSymmetry::StatedSymmetry(StatedSymmetry&&) noexcept = default;
StatedSymmetry& StatedSymmetry::operator=(StatedSymmetry&&) noexcept = default;
StatedSymmetry::~StatedSymmetry() = default;

std::string_view StatedSymmetry::find(const std::string& module) const {
  if (groups_) {
    const Json* group = groups_->find(module);
    if (group == nullptr) group = groups_->of_class("Linear");
    const Json* weights = group == nullptr ? nullptr : &lookups::member(*group, "weights");
    if (weights == nullptr || !weights->is_object()) return {};
    // Source: compressed-tensors, quantization/quant_args.py.
    const auto symmetric = flag_of(*weights, "symmetric");
    if (!symmetric) return "default, symmetric: true,";
    return *symmetric ? "symmetric: true" : std::string_view();
  }
  if (quantization_method(*words_) == "awq")
    return flag_of(*words_, "zero_point") == false ? "zero_point: false" : std::string_view();
  const auto own = symmetry_of_exception(*words_, module);
  return own.value_or(flag_of(*words_, "sym") == true) ? "sym: true" : std::string_view();
}

const Json& StatedSymmetry::group_weights(const std::string& module) const {
  static const Json none;
  const Json* group = groups_ ? groups_->find(module) : nullptr;
  return group == nullptr ? none : lookups::member(*group, "weights");
}

}  // namespace twofour
