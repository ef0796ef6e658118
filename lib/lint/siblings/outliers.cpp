#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "formats/module_names.h"
#include "formats/module_roles.h"
#include "formats/weight_dialect.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"
#include "lib/lint/siblings/untrained.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

// Limits for the RMS of weights, as differences in octaves. The README states the margin of each on real
// weights.
constexpr double kExpertFloor = 0.9;  ///< an expert differs from the other experts of its layer
constexpr double kLayerFloor = 1.9;   ///< a layer differs from all others
/// One of the first or last two layers, which differ even in sound models.
constexpr double kEdgeFloor = 3.5;
constexpr double kNormFloor = 5.0;  ///< a layer's norm differs from all others
constexpr double kAllFloor = 7.0;   ///< a linear differs from all linears of the checkpoint
constexpr double kDeviations = 6;   ///< the difference must also be this many standard deviations
constexpr double kLargestRms = 3,
                 kSmallestRms = -21;  ///< 8 and 5e-7: no trained linear or embedding is beyond
/// log2 of an RMS that no linear has, whatever its initialization.
constexpr double kAbsurdRms = 12;
constexpr double kLargestGate = 5;  ///< for routers and gates of shared experts, whose outputs are exponents
constexpr double kLargestNorm = 9;  ///< 512
constexpr double kLargestSink = 7;  ///< 128, an exponent
constexpr double kLargestNumber = 14;   ///< 16384: no trained bias or norm is as large
constexpr double kLargestDecay = 4.33;  ///< 20, of A_log, an exponent
/// The smallest RMS of most linears, 1.2e-4, and of most norms that multiply by their weights, 0.02. Below,
/// all scales are wrong, or a checkpoint holds differences to another one.
constexpr double kSmallestOfMost = -13, kSmallestOfNorms = -5.64;
/// Smaller matrices have no usual magnitude: they are made by hand, or belong to toy models.
constexpr uint64_t kFewNumbers = 4096, kFewestNumbers = 256, kFewestOfGate = 32;
/// In a model with fewer layers than kSomeLayers, every layer counts as first or last.
constexpr size_t kFewestExperts = 4, kFewestLayers = 3, kSomeLayers = 6, kFewestLinears = 6;

bool is_known(const Member& m) { return std::isfinite(m.log2_rms); }

RobustSpread spread_of(const Group& group) {
  std::vector<double> values;
  for (const Member* m : group) values.push_back(m->log2_rms);
  return robust_spread(std::move(values));
}

class Outliers {
 public:
  Outliers(const LintInput& s, std::span<Member> members, LintReporter& reporter) : s_(s), sink_(reporter) {
    for (Member& m : members) {
      if (m.is_linear && is_known(m)) linears_.push_back(&m);
      if (!m.is_linear && is_known(m)) others_.push_back(&m);
      if (!m.is_linear) all_others_.push_back(&m);
      if (!m.is_linear && m.name.find("norm") != m.name.npos && m.name.find("bias") == m.name.npos &&
          s.tensors[m.figures->tensor].shape.size() == 1)
        norms_.push_back(&m);
    }
  }

  void run() {
    check_most();
    check_implausible();
    // Others are not compared with them.
    std::erase_if(linears_, [](const Member* m) { return m->reported; });
    check_experts();
    check_layers(linears_, kLayerFloor, kEdgeFloor);
    Group norms = norms_;
    std::erase_if(norms, [](const Member* m) { return !is_known(*m); });
    check_layers(norms, kNormFloor, kNormFloor);
    check_all();
    check_norms();
    check_biases();
    check_norm_signs();
    check_others();
  }

 private:
  void report(Member& m, const char* rule, double expected, const std::string& whose) {
    if (std::exchange(m.reported, true)) return;
    sink_.add(rule, s_.at(m.figures->tensor, m.name), "expected an RMS near {:.3g}, that of {}, found {:.3g}",
              std::exp2(expected), whose, std::exp2(m.log2_rms));
  }

  /// Returns the likely mistake in a scale; empty: no known mistake fits.
  std::string mistaken(const Member& m) const {
    if (m.scale == MatrixFigures::kNone) return "";
    std::string text = fmt::format("; its {} is {:.4g}", kind_of_scale(m), std::exp2(m.log2_scale));
    constexpr std::pair<double, const char*> kConstants[] = {
        {1, ", as if it were never set"},
        {6, ", the largest code"},
        {448, ", the largest block scale"},
        {2688, ", the largest code times the largest block scale"}};
    for (const auto& [value, meaning] : kConstants) {
      for (const double x : {value, 1 / value}) {
        if (std::fabs(m.log2_scale - std::log2(x)) < 1e-6) return text + meaning;
      }
    }
    const double full = m.figures->plan.kind == NumberKind::kE4m3 ? 448 : 2688;
    constexpr double kLeast = -12, kMost = 0;  // range of log2 of the RMS of ordinary linears
    if (const double other = m.log2_rms - 2 * m.log2_scale; other > kLeast && other < kMost)
      return text + ", as if it were the reciprocal";
    for (const double times : {1.0, 0.5}) {  // the scale times block scales that have it, or its square
      const double other = m.log2_rms - times * m.log2_scale;
      if (m.log2_rms < kSmallestOfMost && other > kLeast && other < kMost)
        return text + ", as if the weights were multiplied by it twice";
    }
    if (const double other = m.log2_rms - std::log2(full); other > kLeast && other < kMost)
      return text + fmt::format(", as if it were the largest weight, not divided by {}", full);
    return text;
  }

  std::string kind_of_scale(const Member& m) const {
    const std::string& name = s_.tensors[m.scale].name;
    if (name.ends_with("_scales")) return name;
    return name.substr(name.find_last_of('.') + 1);
  }

  static bool is_gate(const Member& m) { return is_router(m.name) || is_shared_expert_gate(m.name); }

  /// Reports linears if most are too small. The others are sound then, and are not compared with them.
  void check_most() {
    constexpr double kNear = 5;  // octaves
    if (linears_.size() < kFewestLinears) return;
    const double median = spread_of(linears_).median;
    if (median >= kSmallestOfMost) return;
    Member* first = nullptr;
    size_t small = 0;
    for (Member* m : linears_) {
      if (m->log2_rms > median + kNear || m->log2_rms >= kSmallestOfMost) continue;
      if (first == nullptr) first = m;
      m->reported = true;
      ++small;
    }
    if (first == nullptr) return;
    sink_.add("implausible-weights", s_.at(first->figures->tensor, first->name),
              "expected an RMS above {:.1g} in most linears, found {:.3g}, and a median of {:.3g} among {} "
              "linears, of which {} are as small{}",
              std::exp2(kSmallestOfMost), std::exp2(first->log2_rms), std::exp2(median), linears_.size(),
              small, mistaken(*first));
    linears_.clear();
  }

  void check_implausible() {
    Group found;
    size_t scaled = 0;
    for (Member* m : linears_) {
      const bool is_small = m->numbers <= 2 * kFewNumbers && !is_gate(*m);
      if (m->numbers < (is_gate(*m) ? kFewestOfGate : kFewestNumbers)) continue;
      if (!is_small) scaled += m->scale != MatrixFigures::kNone;
      if (m->log2_rms < kSmallestRms || m->log2_rms > (is_gate(*m) ? kLargestGate
                                                       : is_small  ? kAbsurdRms
                                                                   : kLargestRms))
        found.push_back(m);
    }
    // If most scales are wrong, they have one cause.
    const auto most = static_cast<size_t>(std::count_if(
        found.begin(), found.end(), [](const Member* m) { return m->scale != MatrixFigures::kNone; }));
    scaled = std::max(scaled, most);  // small ones are counted if they are found
    const bool together = most >= kFewestLinears && 2 * most > scaled;
    std::string others =
        together && scaled > 0 ? fmt::format("; so have {} of {} with such a scale", most, scaled) : "";
    for (Member* m : found) {
      m->reported = true;
      const bool is_one_of = together && m->scale != MatrixFigures::kNone;
      if (is_one_of && others.empty()) continue;
      sink_.add("implausible-weights", s_.at(m->figures->tensor, m->name),
                "expected an RMS between {:.0e} and {:.0f}, found {:.3g}{}{}", std::exp2(kSmallestRms),
                std::exp2(kLargestRms), std::exp2(m->log2_rms), mistaken(*m),
                is_one_of ? std::exchange(others, "") : "");
    }
  }

  void check_experts() {
    std::map<std::pair<std::string, int64_t>, Group> layers;
    for (Member* m : linears_) {
      if (m->at.expert >= 0) layers[{m->at.kind, m->at.layer}].push_back(m);
    }
    for (const auto& [key, group] : layers) {
      if (group.size() < kFewestExperts) continue;
      const RobustSpread spread = spread_of(trained_experts(group));
      const double limit = std::max(kExpertFloor, kDeviations * spread.deviation);
      for (Member* m : group) {
        if (std::fabs(m->log2_rms - spread.median) > limit && !is_never_drawn(*m, group, spread.median) &&
            !has_usual_scales(*m, group, kExpertFloor / 2))
          report(*m, "expert-outlier", spread.median, "the layer's other experts");
      }
    }
  }

  /// Compares layers by the median of their experts. One expert thus does not make its layer an outlier.
  void check_layers(const Group& members, double floor, double edge_floor) {
    std::map<std::string, std::map<int64_t, Group>> kinds;
    for (Member* m : members) {
      if (m->at.layer >= 0) kinds[m->at.kind][m->at.layer].push_back(m);
    }
    for (const auto& [kind, layers] : kinds) {
      if (layers.size() < kFewestLayers) continue;
      std::vector<double> medians;
      for (const auto& [layer, group] : layers) medians.push_back(spread_of(group).median);
      const RobustSpread spread = robust_spread(medians);
      size_t i = 0;
      for (const auto& [layer, group] : layers) {
        const bool edge = i < 2 || i + 2 >= layers.size() || layers.size() < kSomeLayers;
        const double limit = std::max(edge ? edge_floor : floor, kDeviations * spread.deviation);
        if (std::fabs(medians[i] - spread.median) > limit) {
          for (Member* m : group) {
            if (std::fabs(m->log2_rms - spread.median) > limit)
              report(*m, "layer-outlier", spread.median, "other layers");
          }
        }
        ++i;
      }
    }
  }

  void check_all() {
    if (linears_.size() < kFewestLinears) return;
    const RobustSpread spread = spread_of(linears_);
    for (Member* m : linears_) {
      if (m->numbers < kFewNumbers) continue;
      if (std::fabs(m->log2_rms - spread.median) > std::max(kAllFloor, kDeviations * spread.deviation))
        report(*m, "layer-outlier", spread.median, "the other linears");
    }
  }

  /// Reports norms that have only zeros or only one number, if other norms vary. Such numbers are memory into
  /// which nothing was loaded.
  void check_norms() {
    std::map<std::string, Group> kinds;
    for (Member* m : norms_) {
      if (m->at.layer >= 0) kinds[m->at.kind].push_back(m);
    }
    const auto is_constant = [](const Member& m) {
      return !std::isfinite(m.log2_rms) || std::fabs(m.log2_rms - m.log2_amax) < 1e-6;
    };
    const auto of_layers =
        static_cast<size_t>(std::ranges::count_if(norms_, [](const Member* m) { return m->at.layer >= 0; }));
    const auto varied = static_cast<size_t>(
        std::ranges::count_if(norms_, [&](const Member* m) { return m->at.layer >= 0 && !is_constant(*m); }));
    for (const Member* m : norms_) {
      // A norm before or after all layers is compared with the norms in layers.
      if (m->at.layer >= 0 || !is_constant(*m) || varied < kFewestLinears || 4 * varied < 3 * of_layers)
        continue;
      sink_.add("layer-outlier", s_.at(m->figures->tensor, m->name),
                "expected weights that differ (as in {} of {} norms in layers), found {:.3g} throughout",
                varied, of_layers, std::exp2(m->log2_rms));
    }
    for (const auto& [kind, group] : kinds) {
      const auto constant = static_cast<size_t>(
          std::count_if(group.begin(), group.end(), [&](const Member* m) { return is_constant(*m); }));
      if (group.size() < 3 || constant == 0 || 4 * constant > group.size()) continue;
      for (const Member* m : group) {
        if (!is_constant(*m)) continue;
        sink_.add("layer-outlier", s_.at(m->figures->tensor, m->name),
                  "expected weights that differ (as in {} of {} layers), found {:.3g} throughout",
                  group.size() - constant, group.size(), std::exp2(m->log2_rms));
      }
    }
  }

  /// Reports biases of zeros in few layers if those of other layers are not zero.
  void check_biases() {
    std::map<std::string, Group> kinds;
    for (Member* m : all_others_) {
      if (m->at.layer >= 0 && m->name.ends_with("bias")) kinds[m->at.kind].push_back(m);
    }
    for (const auto& [kind, group] : kinds) {
      const auto is_zero = [](const Member* m) { return !std::isfinite(m->log2_rms); };
      const auto zero = static_cast<size_t>(std::ranges::count_if(group, is_zero));
      if (group.size() < kFewestLayers || zero == 0 || 4 * zero > group.size()) continue;
      for (const Member* m : group) {
        if (!is_zero(m)) continue;
        sink_.add("layer-outlier", s_.at(m->figures->tensor, m->name),
                  "expected biases other than zero (as {} of {} like them), found zeros throughout",
                  group.size() - zero, group.size());
      }
    }
  }

  /// Checks norms of known families that multiply by their weights. Reports norms whose weights are all zero,
  /// or hardly ever positive. A trained norm may have weights of both signs.
  void check_norm_signs() {
    const auto model = find_language_model(s_.config);
    if (!model || model->family->norms_add_one) return;
    check_all_norms();
    constexpr double kNearlyAll = 0.9;
    constexpr uint64_t kFew = 16;
    for (Member* m : norms_) {
      const TensorInfo& t = s_.tensors[m->figures->tensor];
      if (!t.name.ends_with(".weight") || m->numbers < kFew || m->reported) continue;
      const bool zero = !is_known(*m);
      if (!zero && m->figures->negative_share < kNearlyAll) continue;
      m->reported = true;
      sink_.add(zero ? "zero-weights" : "odd-numbers", s_.at(m->figures->tensor, m->name),
                zero ? std::string("expected weights of a norm, found zeros throughout")
                     : fmt::format("expected positive weights, found {:.0f} % negative",
                                   100 * m->figures->negative_share));
    }
  }
  /// Checks the norms of all layers together. If most weights are negative, all norms may be too small by
  /// one, and so if all are of both signs alike, where four norms are enough. If nearly all are close to
  /// zero, they may be differences to another checkpoint.
  void check_all_norms() {
    constexpr double kMostNegative = 0.5, kMixed = 0.4;
    constexpr size_t kFewestMixed = 4;
    constexpr int64_t kFewestOfMixed = 512;
    constexpr double kLargestOfMixed = -0.5;  // log2 of the RMS: trained norms are near 1
    std::vector<double> negative, octaves;
    Member* first = nullptr;
    for (Member* m : norms_) {
      if (m->at.layer < 0 || !is_known(*m) || m->reported || !m->name.ends_with("norm")) continue;
      if (first == nullptr) first = m;
      negative.push_back(m->figures->negative_share);
      octaves.push_back(m->log2_rms);
    }
    if (octaves.size() < kFewestMixed) return;
    const double share = robust_spread(negative).median, median = robust_spread(octaves).median;
    const int64_t width = s_.tensors[first->figures->tensor].shape.back();
    const bool is_mixed =
        std::ranges::min(negative) >= kMixed && width >= kFewestOfMixed && median < kLargestOfMixed;
    if (octaves.size() < kFewestLinears && !is_mixed) return;
    if (share <= kMostNegative && !is_mixed && median >= kSmallestOfNorms) return;
    for (Member* m : norms_) m->reported = m->reported || m->at.layer >= 0;
    const LintPlace at = s_.at(first->figures->tensor, first->name);
    if (share > kMostNegative || is_mixed) {
      sink_.add("odd-numbers", at,
                "expected positive weights of norms, found a median of {:.0f} % negative among {} norms, as "
                "of weights to which 1 is to be added",
                100 * share, octaves.size());
    } else {
      sink_.add("implausible-weights", at,
                "expected an RMS above {:.2g} in most norms, found a median of {:.3g} among {} norms, as of "
                "differences to another checkpoint",
                std::exp2(kSmallestOfNorms), std::exp2(median), octaves.size());
    }
  }

  /// True for a router's bias whose large numbers are negative: no token chooses those experts.
  bool keeps_from_choice(const Member& m) const {
    if (!m.module.ends_with("bias") || !is_router(std::string(module_of(m.module)))) return false;
    const std::vector<float> numbers = read_scales(s_, m.figures->tensor);
    return std::ranges::all_of(numbers, [](float x) { return x < std::exp2(kLargestNumber); });
  }

  /// Checks each embedding, norm and bias by itself.
  void check_others() {
    for (Member* m : others_) {
      const bool table = is_table_name(m->module) && m->numbers > 2 * kFewNumbers;
      const bool vector = s_.tensors[m->figures->tensor].shape.size() == 1;
      const bool sink = m->module.ends_with("sinks") || m->module.ends_with("attn_sink");
      const bool norm = vector && std::ranges::find(norms_, m) != norms_.end();
      const bool decay = m->module.ends_with("A_log");
      const double most = sink ? kLargestSink : norm ? kLargestNorm : decay ? kLargestDecay : kLargestNumber;
      const bool beyond = table             ? m->log2_rms < kSmallestRms || m->log2_rms > kLargestRms
                          : vector || decay ? (norm ? m->log2_rms : m->log2_amax) > most
                                            : false;
      if (!beyond || keeps_from_choice(*m) || std::exchange(m->reported, true)) continue;
      sink_.add("implausible-weights", s_.at(m->figures->tensor, m->name),
                table ? fmt::format("expected an RMS between {:.0e} and {:.0f}, found {:.3g}",
                                    std::exp2(kSmallestRms), std::exp2(kLargestRms), std::exp2(m->log2_rms))
                      : fmt::format("expected numbers below {:.0f}, found {:.3g}", std::exp2(most),
                                    std::exp2(m->log2_amax)));
    }
  }

  const LintInput& s_;
  LintReporter& sink_;
  Group linears_, norms_, others_, all_others_;
};

}  // namespace

void lint_outliers(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  Outliers(s, members, reporter).run();
}

}  // namespace twofour
