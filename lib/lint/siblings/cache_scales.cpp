#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"

namespace twofour {
namespace {

class CacheScales {
 public:
  CacheScales(const LintInput& s, const Reported& reported, LintReporter& reporter)
      : s_(s), sink_(reporter), reported_(reported) {}

  void run() {
    check_missing();
    check_values();
  }

 private:
  /// The limits in octaves for scales of keys, and for scales of values, over layers.
  static constexpr double kFloor = 7, kDeviations = 8, kDefaultFloor = 3;
  static constexpr size_t kFewLayers = 6;
  /// Limits for the median of the largest keys, and of the largest values. No model exceeds them.
  static constexpr double kLargest = 4096, kSmallest = 1e-3;
  static constexpr double kLargestE4m3 = 448;

  static std::string without(std::string_view name, std::string_view suffix) {
    return std::string(name.substr(0, name.size() - suffix.size()));
  }

  /// Reports a scale of k without one of v. Also reports layers without either if other layers have both.
  void check_missing() {
    struct Layer {
      size_t tensor = 0;  ///< tensor of the scale of k or v
      bool k = false, v = false, scaled_k = false, scaled_v = false;
    };
    std::map<std::string, Layer> layers;  // by "model.layers.3.self_attn"
    for (size_t t = 0; t < s_.tensors.size(); ++t) {
      const std::string_view name = s_.tensors[t].name;
      for (const bool is_k : {true, false}) {
        for (const std::string_view suffix :
             {is_k ? ".k_proj.k_scale" : ".v_proj.v_scale", is_k ? ".k_scale" : ".v_scale"}) {
          if (!name.ends_with(suffix)) continue;
          Layer& layer = layers[without(name, suffix)];
          (is_k ? layer.scaled_k : layer.scaled_v) = true;
          layer.tensor = t;
          break;
        }
        for (const std::string_view full : {is_k ? ".k_proj.weight" : ".v_proj.weight",
                                            is_k ? ".k_proj.weight_packed" : ".v_proj.weight_packed"}) {
          if (!name.ends_with(full)) continue;
          Layer& layer = layers[without(name, full)];
          (is_k ? layer.k : layer.v) = true;
          if (!layer.scaled_k && !layer.scaled_v) layer.tensor = t;
        }
      }
    }
    // By kind: number of layers with scales, number of all layers.
    std::map<std::string, std::pair<size_t, size_t>> kinds;
    for (const auto& [name, layer] : layers) {
      auto& [with, all] = kinds[sibling_name(name).kind];
      with += layer.scaled_k && layer.scaled_v;
      ++all;
    }
    for (const auto& [name, layer] : layers) {
      if (reported_.covers(name)) continue;
      if (layer.scaled_k != layer.scaled_v) {
        sink_.add("missing-kv-scale", s_.at(layer.tensor, name),
                  "expected scales of both keys and values, found {} and no {}",
                  layer.scaled_k ? "k_scale" : "v_scale", layer.scaled_k ? "v_scale" : "k_scale");
        continue;
      }
      const auto [with, all] = kinds[sibling_name(name).kind];
      if (layer.scaled_k || !layer.k || !layer.v || with == 0 || 2 * with < all) continue;
      sink_.add("missing-kv-scale", s_.at(layer.tensor, name),
                "expected k_scale and v_scale (as in {} of {} layers), found neither", with, all);
    }
  }

  /// Checks scales of keys, and of values, over all layers. Reports a divisor where a multiplier is expected,
  /// and a layer whose scale is far from the others.
  void check_values() {
    for (const std::string_view suffix : {".k_scale", ".v_scale"}) {
      const std::vector<CacheScale> scales = list_scales(suffix);
      if (scales.size() < 2) continue;
      const CacheScale& first = scales[0];
      // Without a stored scale, engines use 1.
      const bool same =
          std::ranges::all_of(scales, [&](const CacheScale& x) { return x.stored == first.stored; });
      if (scales.size() >= 3 && same && first.stored != 1)
        sink_.add("copied-scale", s_.at(first.tensor),
                  "expected a scale for the cache of each layer, found {} for all {}", first.stored,
                  scales.size());
      const char* what = suffix == ".k_scale" ? "keys" : "values";
      std::vector<double> octaves;
      for (const CacheScale& x : scales) octaves.push_back(x.octaves);
      const RobustSpread spread = robust_spread(std::move(octaves));
      const double median = std::exp2(spread.median);
      if (median < kSmallest || median > kLargest) {
        sink_.add("suspicious-scale", s_.at(first.tensor),
                  "expected scales for {} of {:g} to {:g}, found a median of all {} for {:.3g}", what,
                  kSmallest, kLargest, scales.size(), median);
        continue;
      }
      if (scales.size() < 3) continue;
      // A few scales do not show how much they vary.
      const double limit =
          scales.size() < kFewLayers ? kFloor : std::max(kFloor, kDeviations * spread.deviation);
      const auto ones = static_cast<size_t>(
          std::ranges::count_if(scales, [](const CacheScale& x) { return x.stored == 1; }));
      const double default_floor = 8 * ones <= scales.size() ? kDefaultFloor : INFINITY;
      for (const CacheScale& x : scales) {
        const double off = std::fabs(x.octaves - spread.median);
        if (off <= (x.stored == 1 ? default_floor : limit)) continue;
        sink_.add("suspicious-scale", s_.at(x.tensor),
                  "expected a scale for {} up to about {:.3g}, as those of other layers, found {}, one "
                  "for {} up to {:.3g}",
                  what, median, x.stored, what, std::exp2(x.octaves));
      }
    }
  }

  /// A scale of keys or of values, and log2 of the largest number for which it was made.
  struct CacheScale {
    size_t tensor;
    float stored;
    double octaves;
  };

  std::vector<CacheScale> list_scales(std::string_view suffix) const {
    std::vector<CacheScale> scales;
    for (size_t t = 0; t < s_.tensors.size(); ++t) {
      if (!s_.tensors[t].name.ends_with(suffix) || reported_.covers(s_.tensors[t].name)) continue;
      for (const float value : read_scales(s_, t)) {
        if (!(value > 0) || !std::isfinite(value)) continue;
        scales.push_back({t, value, std::log2(double{value} * kLargestE4m3)});
      }
    }
    return scales;
  }

  const LintInput& s_;
  LintReporter& sink_;
  const Reported& reported_;
};

}  // namespace

void lint_cache_scales(const LintInput& s, const Reported& reported, LintReporter& reporter) {
  CacheScales(s, reported, reporter).run();
}

}  // namespace twofour
