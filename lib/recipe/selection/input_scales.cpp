#include "lib/recipe/selection/input_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

using Kind = InputScale::Kind;

bool is_scale(float value) { return std::isfinite(value) && value > 0 && std::isfinite(1 / value); }

/// The projection of a layer that a module belongs to. Gate and up of experts count as one projection, and so
/// do linears that engines fuse.
std::string projection_of(const std::string& module) {
  const auto parsed = parse_module_name(module);
  if (!parsed || parsed->kind != BlockKind::kRoutedExperts) return module;
  return fmt::format("{} {}", parsed->block,
                     parsed->projection == Projection::kDown ? "down" : "gate and up");
}

/// The common name of all linears that engines fuse with a module. The module's own name if there are none.
std::string fused_name(const std::string& module) {
  const auto fused = fused_group(module);
  return fused ? fmt::format("{} {}", fused->first, fused->second) : module;
}

/// The source's input scale of a module as a multiplier, amax / 2688. 0 if it has none.
float existing_scale(const Checkpoint& c, const InputScaleRule::Module& module, Problems& problems) {
  const Linear& m = *module.source;
  if (!m.input_scale) return 0;
  const TensorInfo& t = c.tensors()[*m.input_scale];
  const uint64_t count = t.bytes() / sizeof(float);
  if (t.dtype != DType::kF32 || (count != 1 && count != static_cast<uint64_t>(m.e))) {
    problems.add(fmt::format("{}: expected F32 [] or [1], found {}", c.where(*m.input_scale),
                             describe(t.dtype, t.shape)));
    return 0;
  }
  uint8_t bytes[sizeof(float)];
  c.read(*m.input_scale, count == 1 ? 0 : static_cast<uint64_t>(module.expert) * sizeof(float), bytes);
  float stored = 0;
  std::memcpy(&stored, bytes, sizeof(stored));
  // In other formats the scale is amax / 448.
  const float multiplier =
      m.nvfp4 ? global_scale_multiplier(*c.nvfp4_modules()[*m.nvfp4].dialect, stored) : stored / 6.0f;
  if (!std::isfinite(multiplier) || stored < 0) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), stored));
    return 0;
  }
  return multiplier;  // calibration leaves 0 if there were no tokens
}

/// Chooses the scales of all modules of one rule.
class InputScaleChooser {
 public:
  InputScaleChooser(const Checkpoint& source, const InputScaleRule& rule, Problems& problems)
      : source_(source), rule_(rule), problems_(problems), scales_(rule.modules.size()) {}

  std::vector<ChosenInputScale> run() {
    switch (rule_.setting.kind()) {
      case Kind::kNone:
        if (!rule_.is_needed) return std::vector<ChosenInputScale>(scales_.size());
        throw Error(
            fmt::format("{}: expected input scales in DeepSeek-V4's form, because its loaders read them, "
                        "found a request for none",
                        spelled(keys::kInputScale, "none", rule_.author)));
      case Kind::kConstant:
        scales_.assign(scales_.size(), rule_.setting.constant());
        break;
      case Kind::kGiven:
        take_given();
        break;
      case Kind::kUnset:
      case Kind::kKeep:
      case Kind::kNeighbours:
        take_existing();
        break;
      case Kind::kFile:
        throw Error(fmt::format("{}: expected {}, found '{}'", spelled(keys::kInputScale, rule_.author),
                                InputScale::expected(""), rule_.setting.text()));
    }
    share(fused_name);
    if (rule_.one_a_layer) share(projection_of);
    std::vector<ChosenInputScale> chosen;
    for (size_t i = 0; i < scales_.size(); ++i)
      chosen.push_back({scales_[i], !existing_.empty() && scales_[i] == existing_[i]});
    return chosen;
  }

 private:
  template <class F>
  std::map<std::string, float> largest(F&& key, bool of_neighbours) const {
    std::map<std::string, float> all;
    for (size_t i = 0; i < scales_.size(); ++i) {
      if (!of_neighbours && !rule_.modules[i].is_written) continue;
      float& most = all[key(rule_.modules[i].name)];
      most = std::max(most, scales_[i]);
    }
    return all;
  }

  /// Gives each written module that has a scale the largest scale of the written modules with the same key.
  template <class F>
  void share(F&& key) {
    const auto most = largest(key, false);
    for (size_t i = 0; i < scales_.size(); ++i) {
      if (scales_[i] > 0 && rule_.modules[i].is_written) scales_[i] = most.at(key(rule_.modules[i].name));
    }
  }

  void take_existing() {
    for (size_t i = 0; i < scales_.size(); ++i)
      scales_[i] = existing_scale(source_, rule_.modules[i], problems_);
    existing_ = scales_;
    if (rule_.setting.kind() == Kind::kNeighbours || (rule_.setting.empty() && rule_.is_needed))
      take_neighbours();
  }

  void take_neighbours() {
    const auto most = largest(projection_of, true);
    for (size_t i = 0; i < scales_.size(); ++i) {
      const std::string& name = rule_.modules[i].name;
      if (scales_[i] > 0 || !rule_.modules[i].is_written) continue;
      scales_[i] = most.at(projection_of(name));
      if (scales_[i] > 0) continue;
      if (rule_.setting.empty()) {
        scales_[i] = 1;
        continue;
      }
      problems_.add(fmt::format("{}: expected an input scale in its projection of the layer ({}), found none",
                                name, spelled(keys::kInputScale, "neighbours", rule_.author)));
    }
  }

  void take_given() {
    std::vector<bool> is_used(rule_.given.scales.size());
    for (size_t i = 0; i < scales_.size(); ++i) {
      const InputScaleRule::Module& m = rule_.modules[i];
      const auto* given = rule_.given.find(m.name);
      if (given != nullptr) {
        is_used[static_cast<size_t>(given - rule_.given.scales.data())] = true;
        scales_[i] = std::bit_cast<float>(given->bits) / kNvfp4Range;
      } else if (m.is_written) {
        problems_.add(fmt::format("{0}: expected {0}.amax in the file of input scales, found none", m.name));
      }
    }
    for (size_t i = 0; i < is_used.size(); ++i) {
      if (!is_used[i])
        problems_.add(fmt::format("{}.amax in the file of input scales: expected a linear of {}, found none",
                                  rule_.given.scales[i].name, source_.path().string()));
    }
  }

  const Checkpoint& source_;
  const InputScaleRule& rule_;
  Problems& problems_;
  std::vector<float> scales_, existing_;
};

}  // namespace

bool adds_input_scales(const Rule& rule) {
  const Kind kind = rule.input_scale.kind();
  return kind == Kind::kConstant || kind == Kind::kGiven || kind == Kind::kNeighbours;
}

bool changes_input_scales(const Rule& rule) {
  const bool keeps = rule.input_scale.empty() || rule.input_scale.kind() == Kind::kKeep;
  return !keeps || rule.one_input_scale_a_layer;
}

std::vector<ChosenInputScale> choose_input_scales(const Checkpoint& source, const InputScaleRule& rule,
                                                  Problems& problems) {
  return InputScaleChooser(source, rule, problems).run();
}

FixedGlobalScales read_amax_file(const std::string& path) {
  constexpr std::string_view kSuffix = ".amax";
  const Checkpoint file = Checkpoint::open(path);
  FixedGlobalScales scales;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorInfo& t = file.tensors()[i];
    if (!t.name.ends_with(kSuffix) || t.name.size() == kSuffix.size())
      throw Error(fmt::format("{}: expected only tensors M.amax with the name M of a module, found another",
                              file.where(i)));
    if (t.dtype != DType::kF32 || t.bytes() != sizeof(float))
      throw Error(
          fmt::format("{}: expected F32 [] or [1], found {}", file.where(i), describe(t.dtype, t.shape)));
    uint8_t bytes[sizeof(float)];
    file.read(i, 0, bytes);
    float amax = 0;
    std::memcpy(&amax, bytes, sizeof(amax));
    if (!std::isfinite(amax) || !is_scale(amax / kNvfp4Range))
      throw Error(fmt::format(
          "{}: expected the largest magnitude of inputs, positive and finite in float32, found {}",
          file.where(i), amax));
    scales.scales.push_back(
        {t.name.substr(0, t.name.size() - kSuffix.size()), std::bit_cast<uint32_t>(amax)});
  }
  if (scales.scales.empty())
    throw Error(fmt::format("{}: expected tensors M.amax of input magnitudes, found none", path));
  scales.sort();
  return scales;
}

}  // namespace twofour
