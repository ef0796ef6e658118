#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/half.h"
#include "formats/naming.h"
#include "lib/lint/bytes/checks.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

bool is_scale(float value) { return std::isfinite(value) && value > 0; }

std::string at_expert(size_t i, size_t count) { return count > 1 ? fmt::format(" (expert {})", i) : ""; }

/// Checks the numbers of one scale tensor. `divides` is true if the scale is stored as a divisor.
void check_values(const LintInput& s, size_t tensor, const std::vector<float>& values, bool divides,
                  const char* rule, LintReporter& reporter) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float multiplier = divides ? 1.0f / values[i] : values[i];
    if (!is_scale(values[i]) || !is_scale(multiplier)) {
      reporter.add(rule, s.at(tensor), "expected a positive finite scale, found {}{}", values[i],
                   at_expert(i, values.size()));
      return;
    }
    const float most = multiplier * kNvfp4Range;
    if (most >= kSmallestWeight && !is_beyond_weights(multiplier)) continue;
    reporter.add("suspicious-scale", s.at(tensor),
                 "expected a scale for values of {:g} to {:g}, found {}{}, a scale for values up to {:g}",
                 kSmallestWeight, kLargestWeight, values[i], at_expert(i, values.size()), most);
    return;
  }
}

/// The scales of a fused group, with their modules.
struct Group {
  std::vector<std::pair<const Nvfp4Linear*, float>> global, input;
};

/// Returns the ratio of the largest scale to the smallest. Returns 1 if all are equal, or if any is invalid.
float ratio_of(const std::vector<std::pair<const Nvfp4Linear*, float>>& members) {
  float low = INFINITY, high = 0;
  for (const auto& [m, value] : members) {
    if (!is_scale(value)) return 1;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return members.size() < 2 ? 1 : high / low;
}

bool all_equal(const std::vector<std::pair<const Nvfp4Linear*, float>>& members) {
  return std::all_of(members.begin(), members.end(), [&](auto& m) { return m.second == members[0].second; });
}

/// Two scales are taken for reciprocals of each other if their product differs from 1 by less than this
/// factor.
constexpr float kNearReciprocal = 4;

void check_group(const std::string& parent, const std::vector<std::pair<const Nvfp4Linear*, float>>& members,
                 const char* rule, const std::string& other, size_t& unequal, float& worst,
                 LintReporter& reporter) {
  const bool sound = std::all_of(members.begin(), members.end(), [](auto& m) { return is_scale(m.second); });
  if (!sound || all_equal(members)) return;
  ++unequal;
  worst = std::max(worst, ratio_of(members));
  std::string found;
  for (const auto& [m, value] : members) {
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", leaf_of(m->name), value);
  }
  // A divisor that is stored as a multiplier is far from the others, and its reciprocal is near to them.
  std::string reciprocal;
  if (ratio_of(members) > kNearReciprocal && std::string_view(rule) == "unequal-global-scales") {
    for (const auto& [m, value] : members) {
      const float multiplier = m->dialect->divides ? 1 / value : value;
      const bool has_inverse = std::ranges::any_of(members, [&, v = value](const auto& sibling) {
        return sibling.second * v < kNearReciprocal && sibling.second * v > 1 / kNearReciprocal;
      });
      if (is_beyond_weights(multiplier) && has_inverse)
        reciprocal += fmt::format(
            "{} {} looks like the reciprocal of {:.6g}, a {}", reciprocal.empty() ? ":" : ",",
            leaf_of(m->name), 1 / value,
            m->dialect->divides ? "multiplier stored as a divisor" : "divisor stored as a multiplier");
    }
  }
  // Folding rounds block scales. By a large factor, it makes a scale that was never set permanent.
  constexpr float kMostToFold = 10;
  reporter.add(rule, {"", parent}, "expected equal scales, found {}{}", found,
               !other.empty()                    ? other
               : !reciprocal.empty()             ? reciprocal + "; twofour repair turns it over"
               : ratio_of(members) > kMostToFold ? ": too far apart to be folded, export again"
                                                 : "");
}

/// For each expert whose first projection has the global scale of another expert's second one: words for
/// that. Empty unless all experts of its layer with unequal scales are such.
std::map<std::string, std::string> find_renumbered(
    const std::map<std::pair<std::string, size_t>, Group>& groups) {
  constexpr size_t kFew = 4;
  struct Layer {
    std::map<float, const Nvfp4Linear*> second;
    std::map<std::string, const Group*> unequal;
  };
  std::map<std::string, Layer> layers;
  for (const auto& [key, group] : groups) {
    if (group.global.size() != 2) continue;
    const std::string expert = key.first.substr(0, key.first.find_last_not_of("0123456789") + 1);
    if (expert.size() == key.first.size()) continue;  // not an expert
    Layer& layer = layers[expert];
    layer.second.emplace(group.global[1].second, group.global[1].first);
    if (!all_equal(group.global)) layer.unequal.emplace(key.first, &group);
  }
  std::map<std::string, std::string> found;
  for (const auto& [prefix, layer] : layers) {
    const auto other = [&](const Group* g) { return layer.second.find(g->global[0].second); };
    const bool all = std::ranges::all_of(
        layer.unequal, [&](const auto& g) { return other(g.second) != layer.second.end(); });
    if (!all || layer.unequal.size() < kFew) continue;
    for (const auto& [name, group] : layer.unequal)
      found[name] = fmt::format("; {} has the scale of {}: its experts have other numbers",
                                leaf_of(group->global[0].first->name), other(group)->second->name);
  }
  return found;
}

}  // namespace

std::vector<float> read_scales(const LintInput& s, size_t tensor) {
  const TensorInfo& t = s.tensors[tensor];
  const bool half = t.dtype == DType::kBF16 || t.dtype == DType::kF16;
  constexpr uint64_t kMost = 1u << 20;
  if (!s.whole[tensor] || t.bytes() == 0 || t.bytes() > kMost || (t.dtype != DType::kF32 && !half)) return {};
  std::vector<uint8_t> bytes(t.bytes());
  s.read(tensor, 0, bytes);
  std::vector<float> values(bytes.size() / (half ? 2 : 4));
  if (!half) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, &bytes[2 * i], sizeof(bits));
    values[i] = t.dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
  }
  return values;
}

bool is_input_scale(std::string_view name) {
  return name.ends_with("input_scale") || name.ends_with("input_global_scale") ||
         name.ends_with("input_scale_2");
}

void lint_scalars(const LintInput& s, LintReporter& reporter) {
  std::map<std::pair<std::string, size_t>, Group> groups;
  for (const Nvfp4Linear& m : s.modules) {
    const std::vector<float> global = read_scales(s, m.global_scale);
    check_values(s, m.global_scale, global, m.dialect->divides, "bad-global-scale", reporter);
    std::vector<float> input;
    if (m.input_scale) {
      input = read_scales(s, *m.input_scale);
      check_values(s, *m.input_scale, input, m.dialect->divides, "bad-input-scale", reporter);
    }
    if (input.size() == 1 && global.size() == 1 && input[0] == global[0] && is_scale(input[0]) &&
        input[0] != 1) {
      reporter.add("copied-scale", s.at(*m.input_scale),
                   "expected the scale of the inputs, found that of the weights, {}", input[0]);
    }
    const auto key = m.dialect->stacked ? std::nullopt : fused_group(m.name);
    if (!key) continue;
    if (global.size() == 1) groups[*key].global.push_back({&m, global[0]});
    if (input.size() == 1) groups[*key].input.push_back({&m, input[0]});
  }
  std::map<std::string, std::string> renumbered = find_renumbered(groups);
  size_t fused = 0, unequal = 0, unequal_inputs = 0;
  float worst = 1, worst_input = 1;
  for (const auto& [key, group] : groups) {
    fused += group.global.size() > 1;
    if (!group.global.empty())
      check_group(key.first, group.global, "unequal-global-scales", renumbered[key.first], unequal, worst,
                  reporter);
    if (!group.input.empty())
      check_group(key.first, group.input, "unequal-input-scales", "", unequal_inputs, worst_input, reporter);
  }
  if (unequal > 0)
    reporter.summarize("unequal-global-scales",
                       fmt::format("{} of {} groups, the largest ratio {:.4g}", unequal, fused, worst));
  if (unequal_inputs > 0)
    reporter.summarize("unequal-input-scales", fmt::format("{} of {} groups, the largest ratio {:.4g}",
                                                           unequal_inputs, fused, worst_input));

  // Marks scales that are already checked: those of an artifact's modules and of the KV cache, and input
  // scales of converted modules.
  std::vector<bool> done(s.tensors.size());
  for (const Nvfp4Linear& m : s.modules) {
    done[m.global_scale] = true;
    if (m.input_scale) done[*m.input_scale] = true;
  }
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const std::string& name = s.tensors[i].name;
    const bool divides = name.ends_with(".input_global_scale");
    // Gemma-4 multiplies the outputs of layers and experts by these scales.
    if (name.ends_with(".layer_scalar") || name.ends_with(".per_expert_scale")) {
      const std::vector<float> values = read_scales(s, i);
      const auto zero = std::find(values.begin(), values.end(), 0.0f);
      if (zero != values.end()) {
        reporter.add("zero-scale", s.at(i, name), "expected numbers other than 0, found 0{}",
                     at_expert(static_cast<size_t>(zero - values.begin()), values.size()));
      }
    }
    const bool kv = name.ends_with(".k_scale") || name.ends_with(".v_scale");
    const bool ours = !s.layout.empty() && name.ends_with("global_scale") && !is_input_scale(name) &&
                      !name.ends_with(".weight_global_scale");
    if (done[i] || (!kv && !ours && !is_input_scale(name))) continue;
    check_values(s, i, read_scales(s, i), divides, ours ? "bad-global-scale" : "bad-input-scale", reporter);
  }
}

}  // namespace twofour
