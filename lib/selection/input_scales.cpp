#include "lib/selection/input_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/error.h"
#include "formats/naming.h"

namespace twofour {
namespace {

constexpr std::string_view kConstant = "constant";
constexpr float kNvfp4Range = 2688;  ///< 6 * 448: amax over it is the scale

bool is_scale(float value) { return std::isfinite(value) && value > 0; }

/// The number of "constant=0.5"; 1 of "constant".
float constant_of(const std::string& word) {
  if (word == kConstant) return 1;
  const std::string_view text = std::string_view(word).substr(std::min(word.size(), kConstant.size() + 1));
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !is_scale(value) || !is_scale(1 / value)) {
    throw Error(fmt::format(
        "--input-scale: expected constant or constant=X with a positive number X, found '{}'", word));
  }
  return value;
}

/// The projection of a layer that a module belongs to: experts' gate and up are one, and so is what engines
/// fuse.
std::string projection_of(const std::string& module) {
  const auto parsed = parse_module_name(module);
  if (!parsed || parsed->kind != BlockKind::kRoutedExperts) return module;
  return fmt::format("{} {}", parsed->block,
                     parsed->projection == Projection::kDown ? "down" : "gate and up");
}

/// What engines multiply as one, or the module itself.
std::string fused_name(const std::string& module) {
  const auto fused = fused_group(module);
  return fused ? fmt::format("{} {}", fused->first, fused->second) : module;
}

using Largest = std::map<std::string, float>;

/// Gives each module the largest of those with the same key.
template <class F>
void share(const std::vector<InputScaleModule>& modules, std::vector<float>& scales, F&& key) {
  Largest largest;
  for (size_t i = 0; i < modules.size(); ++i) {
    float& most = largest[key(modules[i].name)];
    most = std::max(most, scales[i]);
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    if (scales[i] > 0) scales[i] = largest.at(key(modules[i].name));
  }
}

void take_neighbours(const std::vector<InputScaleModule>& modules, std::vector<float>& scales,
                     Problems& problems) {
  Largest largest;
  for (size_t i = 0; i < modules.size(); ++i) {
    float& most = largest[projection_of(modules[i].name)];
    most = std::max(most, scales[i]);
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    if (scales[i] > 0) continue;
    scales[i] = largest.at(projection_of(modules[i].name));
    if (scales[i] == 0) {
      problems.add(fmt::format(
          "{}: expected an input scale in its projection of the layer (--input-scale neighbours), found none",
          modules[i].name));
    }
  }
}

void take_given(const Rule& rule, const std::vector<InputScaleModule>& modules, std::vector<float>& scales,
                Problems& problems) {
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto* given = rule.input_scales.find(modules[i].name);
    if (given == nullptr) {
      problems.add(fmt::format("{}: expected {}.amax in the file of input scales, found none",
                               modules[i].name, modules[i].name));
    } else {
      scales[i] = std::bit_cast<float>(given->bits) / kNvfp4Range;
    }
  }
}

}  // namespace

std::vector<float> choose_input_scales(const Rule& rule, const std::vector<InputScaleModule>& modules,
                                       Problems& problems) {
  const std::string& word = rule.input_scale;
  std::vector<float> scales;
  for (const InputScaleModule& m : modules) scales.push_back(m.existing);
  if (word == "none") return std::vector<float>(modules.size(), 0);
  if (word.starts_with(kConstant)) {
    scales.assign(modules.size(), constant_of(word));
  } else if (word == "neighbours") {
    take_neighbours(modules, scales, problems);
  } else if (word == "given") {
    take_given(rule, modules, scales, problems);
  } else if (!word.empty() && word != "keep") {
    throw Error(fmt::format(
        "--input-scale: expected keep, none, constant, constant=X, neighbours or a file, found '{}'", word));
  }
  share(modules, scales, fused_name);
  if (rule.one_input_scale_a_layer) share(modules, scales, projection_of);
  return scales;
}

float read_input_scale(const Checkpoint& c, const Nvfp4Linear& m, Problems& problems) {
  if (!m.input_scale) return 0;
  const TensorInfo& t = c.tensors()[*m.input_scale];
  float stored = 0;
  if (t.dtype == DType::kF32 && t.bytes() == sizeof(stored)) {
    uint8_t bytes[sizeof(stored)];
    c.read(*m.input_scale, 0, bytes);
    std::memcpy(&stored, bytes, sizeof(stored));
  }
  const float multiplier = global_scale_multiplier(*m.dialect, stored);
  // Calibration leaves 0 where no token came by, and its reciprocal is infinite.
  if (stored == 0 || std::isinf(stored) || multiplier == 0) return 0;
  if (!is_scale(multiplier)) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), stored));
  }
  return multiplier;
}

FixedGlobalScales read_amax_file(const std::string& path) {
  constexpr std::string_view kSuffix = ".amax";
  const Checkpoint file = Checkpoint::open(path);
  FixedGlobalScales scales;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorInfo& t = file.tensors()[i];
    if (!t.name.ends_with(kSuffix)) continue;
    float amax = 0;
    if (t.dtype == DType::kF32 && t.bytes() == sizeof(amax)) {
      uint8_t bytes[sizeof(amax)];
      file.read(i, 0, bytes);
      std::memcpy(&amax, bytes, sizeof(amax));
    }
    if (!is_scale(amax) || !is_scale(kNvfp4Range / amax)) {
      throw Error(fmt::format("{}: expected F32 [] with a positive finite number, found {} of {}",
                              file.where(i), describe(t.dtype, t.shape), amax));
    }
    scales.scales.push_back(
        {t.name.substr(0, t.name.size() - kSuffix.size()), std::bit_cast<uint32_t>(amax)});
  }
  if (scales.scales.empty())
    throw Error(fmt::format("{}: expected tensors M.amax of input magnitudes, found none", path));
  scales.sort();
  return scales;
}

}  // namespace twofour
