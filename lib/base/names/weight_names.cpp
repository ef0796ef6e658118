#include "lib/base/names/weight_names.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "formats/dialect.h"
#include "formats/naming.h"

namespace twofour {
namespace {

constexpr std::string_view kBlocks = "_blocks";

bool is_stack_name(std::string_view linear) {
  const auto name = parse_module_name(linear);
  return name && name->kind == BlockKind::kRoutedExperts && name->expert < 0;
}

bool overlap(Projection a, Projection b) {
  const auto has_both = [](Projection p, Projection of) {
    return p == Projection::kGateUp && of != Projection::kDown;
  };
  return a == b || has_both(a, b) || has_both(b, a);
}

/// The common path of both names, part by part.
std::string common_path(std::string_view a, std::string_view b) {
  while (a != b && !is_below(b, a)) a = a.find('.') == a.npos ? "" : parent_of(a);
  return std::string(a);
}

/// Finds weights of the same linear in another format.
std::optional<size_t> find_other_format(std::span<const TensorInfo> tensors, size_t i,
                                        const WeightName& own) {
  // Tensors are sorted, so those whose names begin with the linear's are neighbours.
  size_t first = i;
  while (first > 0 && tensors[first - 1].name.starts_with(own.linear)) --first;
  const auto before = tensors.subspan(first, i - first);
  if (before.empty()) return std::nullopt;
  for (const std::string_view suffix :
       {kWeightSuffixes[0], kWeightSuffixes[1], kWeightSuffixes[2], std::string_view(), kBlocks}) {
    const auto at = find_tensor(before, own.linear + std::string(suffix));
    if (at && weight_name(before[*at])) return first + *at;
  }
  return std::nullopt;
}

/// Finds the same matrix under another family's name: "w1" beside "gate_proj". The family of the other name
/// need not have such a block.
std::optional<size_t> find_other_name(std::span<const TensorInfo> tensors, size_t i, const WeightName& own) {
  const auto name = parse_module_name(own.linear);
  if (!name || own.is_stack) return std::nullopt;
  const std::string block = std::string(parent_of(own.linear)) + ".";
  const Neighbours beside = find_neighbours(tensors, i, block);
  for (const NamingRule& rule : naming_rules()) {
    const char* leaf = name->projection == Projection::kGate ? rule.gate
                       : name->projection == Projection::kUp ? rule.up
                                                             : rule.down;
    if (leaf == nullptr || leaf == leaf_of(own.linear)) continue;
    const std::string linear = block + leaf;
    const auto at = find_weight(beside.tensors, linear);
    if (!at) continue;
    const auto other = parse_module_name(linear);
    const bool is_like = other && other->kind == name->kind && other->projection == name->projection;
    if (is_like && linear > own.linear) continue;  // the search for the other name finds this pair
    return beside.first + *at;
  }
  return std::nullopt;
}

bool has_name_at(std::span<const TensorInfo> tensors, std::string_view prefix) {
  const auto at = std::ranges::lower_bound(tensors, prefix, {}, &TensorInfo::name);
  return at != tensors.end() && at->name.starts_with(prefix);
}

constexpr std::string_view kLayers = "layers.";

/// The wrappers below which a model has layers.
std::vector<std::string_view> find_wrappers(std::span<const TensorInfo> tensors) {
  std::vector<std::string_view> found;
  for (const std::string_view wrapper :
       {"language_model.model.", "model.language_model.", "model.model.", "language_model.", "model.", ""}) {
    if (has_name_at(tensors, std::string(wrapper) + std::string(kLayers))) found.push_back(wrapper);
  }
  return found;
}

/// The same linear's other name, if a model has it in and without a wrapper. Loaders map both to one model.
std::optional<size_t> find_other_wrapper(std::span<const TensorInfo> tensors,
                                         const std::vector<std::string_view>& wrappers,
                                         const WeightName& own) {
  if (wrappers.size() < 2) return std::nullopt;
  for (const std::string_view wrapper : wrappers) {
    if (!own.linear.starts_with(wrapper)) continue;
    const std::string inner = own.linear.substr(wrapper.size());
    if (!inner.starts_with(kLayers)) continue;
    for (const std::string_view other : wrappers) {
      if (other == wrapper) continue;
      if (const auto at = find_weight(tensors, std::string(other) + inner)) return at;
    }
  }
  return std::nullopt;
}

/// A part of a fused linear with weights of its own.
std::optional<size_t> find_part(std::span<const TensorInfo> tensors, const WeightName& own) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"gate_up_proj", "gate_proj"},
      {"gate_up_proj", "up_proj"},
      {"gate_up_proj", "w1"},
      {"gate_up_proj", "w3"},
      {"w13", "w1"},
      {"w13", "w3"},
      {"w13", "gate_proj"},
      {"w13", "up_proj"},
      {"qkv_proj", "q_proj"},
      {"qkv_proj", "k_proj"},
      {"qkv_proj", "v_proj"},
  };
  for (const auto& [fused, part] : kParts) {
    if (leaf_of(own.linear) != fused) continue;
    const std::string linear = std::string(parent_of(own.linear)) + "." + std::string(part);
    if (const auto at = find_weight(tensors, linear)) return at;
  }
  return std::nullopt;
}

/// A separate expert with weights that a stack holds, too.
std::optional<size_t> find_expert(std::span<const TensorInfo> tensors, const WeightName& stack) {
  const auto own = parse_module_name(stack.linear);
  const std::string below = own->block + ".";
  auto at = std::lower_bound(tensors.begin(), tensors.end(), below,
                             [](const TensorInfo& t, const std::string& name) { return t.name < name; });
  for (; at != tensors.end() && at->name.starts_with(below); ++at) {
    const auto other = weight_name(*at);
    if (!other || other->linear == stack.linear) continue;
    const auto name = parse_module_name(other->linear);
    if (name && name->block == own->block && overlap(name->projection, own->projection))
      return static_cast<size_t>(at - tensors.begin());
  }
  return std::nullopt;
}

/// Weights of an expert beside an engine's own stack of its block, "P.w13_weight" or "P.w2_weight_packed".
std::optional<size_t> find_expert_beside(std::span<const TensorInfo> tensors, const TensorInfo& stack) {
  const std::string_view leaf = leaf_of(stack.name);
  const bool is_stack = leaf.starts_with("w13_weight") || leaf.starts_with("w13_qweight") ||
                        leaf.starts_with("w2_weight") || leaf.starts_with("w2_qweight");
  if (!is_stack) return std::nullopt;
  const std::string block(parent_of(stack.name)), below = block + ".";
  auto at = std::lower_bound(tensors.begin(), tensors.end(), below,
                             [](const TensorInfo& t, const std::string& name) { return t.name < name; });
  for (; at != tensors.end() && at->name.starts_with(below); ++at) {
    const auto own = weight_name(*at);
    const auto name = own ? parse_module_name(own->linear) : std::nullopt;
    if (name && name->block == block) return static_cast<size_t>(at - tensors.begin());
  }
  return std::nullopt;
}

}  // namespace

std::optional<WeightName> weight_name(const TensorInfo& t) {
  const size_t rank = t.shape.size();
  if (rank == 0 || t.dtype == DType::kBool) return std::nullopt;
  for (const std::string_view suffix : kWeightSuffixes) {
    if (!t.name.ends_with(suffix) || (rank < 2 && suffix == kWeightSuffixes[0])) continue;
    std::string linear = t.name.substr(0, t.name.size() - suffix.size());
    const bool is_stack = rank == 3 && parse_module_name(linear);
    return WeightName{std::move(linear), suffix, is_stack};
  }
  if (rank == 4 && t.name.ends_with(kBlocks))
    return WeightName{t.name.substr(0, t.name.size() - kBlocks.size()), kBlocks, true};
  return rank == 3 && is_stack_name(t.name) ? std::optional(WeightName{t.name, "", true}) : std::nullopt;
}

Neighbours tensors_below(std::span<const TensorInfo> tensors, std::string_view prefix, size_t first) {
  const auto begin = std::ranges::lower_bound(tensors, prefix, {},
                                              [](const TensorInfo& t) { return std::string_view(t.name); });
  const auto end =
      std::find_if_not(begin, tensors.end(), [&](const TensorInfo& t) { return t.name.starts_with(prefix); });
  return {first + static_cast<size_t>(begin - tensors.begin()), {begin, end}};
}

Neighbours find_neighbours(std::span<const TensorInfo> tensors, size_t i, std::string_view prefix) {
  const auto has = [&](const TensorInfo& t) { return t.name.starts_with(prefix); };
  // Steps double until they leave the neighbours.
  size_t first = i, last = i, step = 1;
  while (first >= step && has(tensors[first - step])) first -= step, step *= 2;
  const size_t left = first - std::min(first, step);
  first = static_cast<size_t>(std::partition_point(tensors.begin() + static_cast<std::ptrdiff_t>(left),
                                                   tensors.begin() + static_cast<std::ptrdiff_t>(first),
                                                   std::not_fn(has)) -
                              tensors.begin());
  step = 1;
  while (tensors.size() - last > step && has(tensors[last + step])) last += step, step *= 2;
  const size_t right = std::min(tensors.size(), last + step);
  const auto end = std::partition_point(tensors.begin() + static_cast<std::ptrdiff_t>(last),
                                        tensors.begin() + static_cast<std::ptrdiff_t>(right), has);
  return {first, tensors.subspan(first, static_cast<size_t>(end - tensors.begin()) - first)};
}

std::optional<size_t> find_weight(std::span<const TensorInfo> tensors, const std::string& linear) {
  std::optional<size_t> found;
  if (!has_name_at(tensors, linear)) return found;
  for (const std::string& name : {linear, linear + ".base_layer"}) {
    for (const std::string_view suffix : kWeightSuffixes)
      found = found ? found : find_tensor(tensors, name + std::string(suffix));
  }
  for (const char* suffix : {"", "_blocks", ".compressed"})
    found = found ? found : find_tensor(tensors, linear + suffix);
  return found;
}

std::vector<SecondHome> find_second_homes(std::span<const TensorInfo> tensors) {
  std::vector<SecondHome> found;
  const std::vector<std::string_view> wrappers = find_wrappers(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (const auto expert = find_expert_beside(tensors, tensors[i]))
      found.push_back({*expert, i, std::string(parent_of(tensors[i].name))});
    const auto own = weight_name(tensors[i]);
    if (!own) continue;
    if (const auto other = find_other_format(tensors, i, *own)) {
      found.push_back({i, *other, own->is_stack ? std::string(parent_of(own->linear)) : own->linear});
    } else if (const auto alias = find_other_name(tensors, i, *own)) {
      found.push_back({i, *alias, std::string(parent_of(own->linear))});
    } else if (const auto part = find_part(tensors, *own)) {
      found.push_back({i, *part, std::string(parent_of(own->linear))});
    } else if (const auto wrapped = find_other_wrapper(tensors, wrappers, *own)) {
      found.push_back({i, *wrapped, own->linear});
    } else if (own->is_stack && is_stack_name(own->linear)) {
      if (const auto expert = find_expert(tensors, *own))
        found.push_back({i, *expert, common_path(own->linear, tensors[*expert].name)});
    }
  }
  return found;
}

}  // namespace twofour
