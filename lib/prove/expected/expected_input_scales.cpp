#include "lib/prove/expected/expected_input_scales.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "formats/naming.h"

namespace twofour {
namespace {

/// A module whose scale is being derived.
struct Candidate {
  const InputScaleRule::Module* module;
  float own = 0, scale = 0;
  std::string projection = {}, fused = {};
};

/// The input scale of a module in the source, as the divisor of activations. 0 if there is none.
float stored_scale(const Checkpoint& source, const InputScaleRule::Module& module) {
  const Linear& m = *module.source;
  if (!m.input_scale) return 0;
  std::vector<uint8_t> bytes(static_cast<size_t>(source.tensors()[*m.input_scale].bytes()));
  source.read(*m.input_scale, 0, bytes);
  const size_t at = bytes.size() > sizeof(float) ? static_cast<size_t>(module.expert) * sizeof(float) : 0;
  float value = 0;
  std::memcpy(&value, &bytes[at], sizeof(value));
  if (!m.nvfp4) return static_cast<float>(static_cast<double>(value) / 6);  // the stored value is amax / 448
  return source.nvfp4_modules()[*m.nvfp4].dialect->divides ? 1.0f / value : value;
}

/// Names the groups of a module. The experts of a block form two groups: their downs, and their other
/// linears. Other modules are grouped with those that engines fuse with them.
void name_groups(Candidate& one) {
  const std::string& name = one.module->name;
  const auto fused = fused_group(name);
  one.fused = fused ? fused->first + " " + std::to_string(fused->second) : name;
  one.projection = name;
  const auto parsed = parse_module_name(name);
  if (parsed && parsed->kind == BlockKind::kRoutedExperts)
    one.projection = parsed->block + (parsed->projection == Projection::kDown ? " down" : " gate and up");
}

/// Calls f(first, last) for each range of candidates that have the same key.
void for_each_group(std::vector<Candidate>& all, std::string Candidate::*key,
                    const std::function<void(std::span<Candidate>)>& f) {
  std::stable_sort(all.begin(), all.end(),
                   [&](const Candidate& a, const Candidate& b) { return a.*key < b.*key; });
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].*key == all[begin].*key) ++end;
    f(std::span(all).subspan(begin, end - begin));
  }
}

/// Gives written modules that have a scale the largest of their scales.
void level(std::span<Candidate> group) {
  float most = 0;
  for (const Candidate& one : group) {
    if (one.module->is_written) most = std::max(most, one.scale);
  }
  for (Candidate& one : group) {
    if (one.module->is_written && one.scale > 0) one.scale = most;
  }
}

/// Gives written modules without a scale the largest scale of the group, or `otherwise` if there is none.
void fill(std::span<Candidate> group, float otherwise) {
  float most = 0;
  for (const Candidate& one : group) most = std::max(most, one.own);
  for (Candidate& one : group) {
    if (one.module->is_written && one.scale == 0) one.scale = most > 0 ? most : otherwise;
  }
}

}  // namespace

ExpectedInputScales::Scale ExpectedInputScales::of(const InputScaleRule& rule, const std::string& module) {
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = known_.try_emplace(&rule);
  if (is_new) at->second = derive(rule);
  return at->second.at(module);
}

ExpectedInputScales::Scales ExpectedInputScales::derive(const InputScaleRule& rule) const {
  const std::string& setting = rule.setting.text();
  const bool none = setting == "none", constant = setting.starts_with("constant");
  const bool from_source = !none && !constant && setting != "given";
  std::vector<Candidate> all;
  for (const InputScaleRule::Module& m : rule.modules) {
    Candidate one{&m};
    name_groups(one);
    if (from_source) one.scale = one.own = stored_scale(source_, m);
    if (constant) one.scale = setting == "constant" ? 1.0f : std::strtof(setting.c_str() + 9, nullptr);
    if (setting == "given" && m.is_written) {
      const double amax = std::bit_cast<float>(rule.given.find(m.name)->bits);
      one.scale = static_cast<float>(amax / (6 * 448));
    }
    all.push_back(std::move(one));
  }
  const bool by_default = setting.empty() && rule.is_needed;
  if (by_default || setting == "neighbours") {
    for_each_group(all, &Candidate::projection,
                   [&](std::span<Candidate> group) { fill(group, by_default ? 1.0f : 0.0f); });
  }
  for_each_group(all, &Candidate::fused, level);
  if (rule.one_a_layer) for_each_group(all, &Candidate::projection, level);
  Scales scales;
  for (const Candidate& one : all) {
    if (one.module->is_written) scales[one.module->name] = {one.scale, from_source && one.scale == one.own};
  }
  return scales;
}

}  // namespace twofour
