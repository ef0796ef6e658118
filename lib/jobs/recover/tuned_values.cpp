#include "lib/jobs/recover/tuned_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "formats/error.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "lib/base/threads/parallel.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

std::string parent_of(const std::string& linear) { return linear.substr(0, linear.rfind('.')); }

std::vector<uint8_t> read_tensor(const Checkpoint& c, const std::string& name) {
  const size_t tensor = *c.find(name);
  std::vector<uint8_t> bytes(c.tensors()[tensor].bytes());
  c.read(tensor, 0, bytes);
  return bytes;
}

float float_at(const std::vector<uint8_t>& bytes, int64_t element) {
  float value = 0;
  std::memcpy(&value, bytes.data() + at(element) * sizeof value, sizeof value);
  return value;
}

void put(DType dtype, double value, size_t element, std::vector<uint8_t>& bytes) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(bytes.data() + element * sizeof narrow, &narrow, sizeof narrow);
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? bf16_from_float(narrow) : fp16_from_float(narrow);
  std::memcpy(bytes.data() + element * sizeof half, &half, sizeof half);
}

}  // namespace

TunedValues::TunedValues(const Checkpoint& stored, const Decoder& model) : stored_(stored), model_(model) {
  if (model.checkpoint().is_view()) {
    const ArtifactModules modules = read_artifact_modules(stored);
    for (const SourceLinear& m : modules.modules) {
      std::vector<Place>& places = in_layouts_[m.name + m.dialect->global_scale];
      for (int64_t e = 0; e < m.e; ++e)
        places.push_back(
            {stored.tensors()[modules.matrices[m.matrix].global_scale].name, m.first_expert + e, false});
    }
  }
  const DecoderState& s = model.state();
  for (size_t layer = 0; layer < s.layers.size(); ++layer) {
    const LayerWeights& w = s.layers[layer];
    const AttentionWeights& a = w.attention;
    for (const ModelVector* norm : {&a.norm, &a.q_a_norm, &a.kv_a_norm, &a.q_norm, &a.k_norm, &a.norm_behind,
                                    &w.feed_forward.norm, &w.feed_forward.norm_behind})
      add_norm(*norm);
    for (size_t g = 0; g < w.groups.size(); ++g) {
      for (const std::string& linear : w.groups[g].linears)
        add_scale(linear, fmt::format("{} {} {}", layer, g, parent_of(linear)));
    }
  }
  add_norm(s.norm);
  if (const auto head = model.head_group()) add_scale(head->linears.front(), "head");
}

void TunedValues::add_norm(const ModelVector& norm) {
  if (!norm || norm_of_.contains(*norm.tensor)) return;
  const TensorInfo& t = model_.checkpoint().tensors()[*norm.tensor];
  std::vector<float> read = model_.state().weights.read(norm);
  check(norm.first == 0 && norm.step == 1, "a norm that is a whole tensor");
  norm_of_[*norm.tensor] = norms_.size();
  norms_.push_back(
      {t.name, t.dtype, static_cast<double>(norm.plus), norm_numbers_, {read.begin(), read.end()}});
  norm_numbers_ += read.size();
}

std::vector<TunedValues::Place> TunedValues::stored_places(const Place& shown, const Nvfp4Linear& module,
                                                           int64_t expert) const {
  const auto in_layout = in_layouts_.find(shown.tensor);
  if (in_layout == in_layouts_.end()) return {shown};
  const int64_t elements =
      static_cast<int64_t>(model_.checkpoint().tensors()[module.global_scale].bytes() / sizeof(float));
  if (elements == 1) return in_layout->second;  // one scale for all experts
  return {in_layout->second[at(expert)]};
}

void TunedValues::add_scale(const std::string& linear, const std::string& kin) {
  const ModelMatrix& w = model_.state().linears.at(linear);
  if (!w.module->nvfp4) return;
  const Checkpoint& c = model_.checkpoint();
  const Nvfp4Linear& module = c.nvfp4_modules()[*w.module->nvfp4];
  const TensorInfo& t = c.tensors()[module.global_scale];
  const Place shown{t.name, t.bytes() == sizeof(float) ? 0 : w.place.e, module.dialect->divides};
  const float raw = float_at(read_tensor(c, t.name), shown.element);
  const float value = global_scale_multiplier(*module.dialect, raw);
  const std::vector<Place> stored = stored_places(shown, module, w.place.e);
  const std::string own_kin = fmt::format("{} {:08x}", kin, std::bit_cast<uint32_t>(value));

  // Use the offset of a linear that shares a place, or of a linear that engines join with this one.
  std::optional<size_t> found;
  for (const Place& place : stored) {
    if (const auto at = scale_at_.find(place); at != scale_at_.end()) found = at->second;
  }
  if (const auto at = scale_of_kin_.find(own_kin); !found && at != scale_of_kin_.end()) found = at->second;
  const size_t i = found.value_or(scales_.size());
  if (!found) scales_.push_back({static_cast<double>(value), {}, {}});
  scale_of_[linear] = i;
  scale_of_kin_.emplace(own_kin, i);
  if (std::find(scales_[i].shown.begin(), scales_[i].shown.end(), shown) == scales_[i].shown.end())
    scales_[i].shown.push_back(shown);
  for (const Place& place : stored) {
    if (!scale_at_.emplace(place, i).second) continue;
    scales_[i].stored.push_back(place);
    scale_tensors_[place.tensor] = true;
  }
}

std::optional<size_t> TunedValues::find_scale(const std::string& linear) const {
  const auto at = scale_of_.find(linear);
  return at == scale_of_.end() ? std::nullopt : std::optional(norm_numbers_ + at->second);
}

std::optional<std::pair<size_t, std::span<const double>>> TunedValues::find_norm(size_t tensor) const {
  const auto at = norm_of_.find(tensor);
  if (at == norm_of_.end()) return std::nullopt;
  const Norm& norm = norms_[at->second];
  return std::pair(norm.first, std::span<const double>(norm.values));
}

TensorBytes TunedValues::bytes(std::span<const double> offsets, bool shown) const {
  const Checkpoint& c = shown ? model_.checkpoint() : stored_;
  TensorBytes all;
  for (const Norm& norm : norms_) {
    std::vector<uint8_t>& to = all[norm.name] = read_tensor(c, norm.name);
    for (size_t i = 0; i < norm.values.size(); ++i) {
      const double offset = offsets[norm.first + i];
      if (offset != 0) put(norm.dtype, norm.values[i] * (1 + offset) - norm.plus, i, to);
    }
  }
  for (size_t i = 0; i < scales_.size(); ++i) {
    const double offset = offsets[norm_numbers_ + i];
    const auto value = static_cast<float>(scales_[i].value * (1 + offset));
    for (const Place& place : shown ? scales_[i].shown : scales_[i].stored) {
      std::vector<uint8_t>& to = all[place.tensor];
      if (to.empty()) to = read_tensor(c, place.tensor);
      if (offset != 0)
        put(DType::kF32, static_cast<double>(place.divides ? 1.0f / value : value), at(place.element), to);
    }
  }
  return all;
}

void TunedGradients::see_gradient(size_t, std::span<const float> x, std::span<const int64_t>,
                                  std::span<const OutputGradient> outputs) {
  for (const OutputGradient& output : outputs) {
    const auto offset = values_.find_scale(output.linear);
    if (!offset) continue;
    ModelMatrix w = model_.state().linears.at(output.linear);
    w.has_bias = false;
    const size_t n = at(w.n), rows = output.dy.size() / n;
    check(rows * at(w.k) == x.size(), "a gradient of the whole linear");
    std::vector<float> y(output.dy.size());
    model_.state().weights.multiply(w, x.data(), static_cast<int64_t>(rows), y.data());
    std::vector<double> products(rows);
    parallel_for(rows, [&](size_t i) {
      for (size_t j = i * n; j < (i + 1) * n; ++j)
        products[i] += static_cast<double>(y[j]) * static_cast<double>(output.dy[j]);
    });
    double sum = 0;  // in the order of rows, for any number of threads
    for (const double one : products) sum += one;
    sums_[*offset] += sum / (1 + offsets_[*offset]);
  }
}

void TunedGradients::see_norm_gradient(const ModelVector& norm, std::span<const double> dweight) {
  const auto found = values_.find_norm(*norm.tensor);
  if (!found) return;
  const auto [first, values] = *found;
  for (size_t i = 0; i < dweight.size(); ++i) sums_[first + i] += dweight[i] * values[i];
}

}  // namespace twofour
