#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

// Functions on names of modules and tensors. A name is a path: its parts are separated by dots.

namespace twofour {

/// The part after the last dot; the whole name if it has no dot.
constexpr std::string_view leaf_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

/// The parts before the last dot; empty if the name has no dot.
constexpr std::string_view parent_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot == name.npos ? 0 : dot);
}

/// The module of a tensor: the tensor's name without its last part. A name without a dot is returned
/// unchanged.
constexpr std::string_view module_of(std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// True if `above` is a module above `name`.
constexpr bool is_below(std::string_view name, std::string_view above) {
  return name.size() > above.size() && name.starts_with(above) && name[above.size()] == '.';
}

/// True if a name equals `path` or ends in its parts: "model.layers.0.mlp.gate" ends in "mlp.gate".
constexpr bool ends_in(std::string_view name, std::string_view path) {
  if (!name.ends_with(path)) return false;
  return name.size() == path.size() || name[name.size() - path.size() - 1] == '.';
}

/// True if `f` returns true for any part of a name.
template <class F>
constexpr bool any_part(std::string_view name, F&& f) {
  for (size_t at = 0; at < name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    if (f(name.substr(at, dot - at))) return true;
    at = dot + 1;
  }
  return false;
}

/// True if any part of a name equals `part`.
constexpr bool has_part(std::string_view name, std::string_view part) {
  return any_part(name, [&](std::string_view own) { return own == part; });
}

/// True if `f` returns true for a name or any module above it. Tries the name first, then goes upwards.
template <class F>
constexpr bool any_above(std::string_view name, F&& f) {
  for (;; name = parent_of(name)) {
    if (f(name)) return true;
    if (name.find('.') == name.npos) return false;
  }
}

/// The parts of a name, in order.
inline std::vector<std::string_view> name_parts(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, dot - at));
    at = dot + 1;
  }
  return parts;
}

/// True if a part consists of digits only.
constexpr bool is_number_part(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
}

/// Parses the number of a part, such as "0" or "17". Empty for "017" and other text.
inline std::optional<int64_t> parse_index(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool canonical = text.size() == 1 || (!text.empty() && text[0] != '0');
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || !canonical)
    return std::nullopt;
  return value;
}

}  // namespace twofour
