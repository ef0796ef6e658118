#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"

namespace twofour {
namespace {

/// A small tensor of one layer, with its numbers.
struct LayerVector {
  Member* member = nullptr;
  std::vector<float> numbers{};
  double mean = 0, negative = 0;  ///< mean, and share of negative numbers
};

using LayerVectors = std::vector<LayerVector>;

constexpr size_t kFewestVectors = 3, kFewestOfVector = 16;

double correlation_of(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

/// Compares norms, decays and taps of convolutions with those of other layers.
class LayerVectorChecks {
 public:
  LayerVectorChecks(const LintInput& s, std::span<Member> members, LintReporter& sink)
      : s_(s), members_(members), sink_(sink) {}

  void run() {
    std::map<std::string, LayerVectors> kinds;
    for (Member& m : members_) {
      if (m.at.layer < 0 || m.is_linear || m.reported) continue;
      const bool is_norm = m.name.ends_with("norm") && shape_of(m).size() == 1;
      const bool is_taps = m.name.ends_with("conv1d") && shape_of(m).size() == 3;
      if (is_norm || is_taps || m.name.ends_with("A_log")) kinds[m.at.kind].push_back({&m});
    }
    for (auto& [kind, vectors] : kinds) {
      if (vectors.size() < kFewestVectors) continue;
      for (LayerVector& v : vectors) read(v);
      std::erase_if(vectors, [](const LayerVector& v) { return v.numbers.size() < kFewestOfVector; });
      std::ranges::sort(vectors, {}, [](const LayerVector& v) { return v.member->at.layer; });
      if (vectors.size() < kFewestVectors) continue;
      if (kind.ends_with("A_log")) {
        check_decays(vectors);
      } else if (kind.ends_with("conv1d")) {
        check_taps(vectors);
      } else {
        check_less_one(vectors);
      }
    }
    check_exchanged();
  }

 private:
  const std::vector<int64_t>& shape_of(const Member& m) const { return s_.tensors[m.figures->tensor].shape; }
  LintPlace place(const Member& m) const { return s_.at(m.figures->tensor, m.name); }

  void read(LayerVector& v) const {
    v.numbers = read_scales(s_, v.member->figures->tensor);
    if (!std::ranges::all_of(v.numbers, [](float x) { return std::isfinite(x); })) v.numbers.clear();
    if (v.numbers.empty()) return;
    const auto count = static_cast<double>(v.numbers.size());
    v.mean = std::accumulate(v.numbers.begin(), v.numbers.end(), 0.0) / count;
    v.negative = static_cast<double>(std::ranges::count_if(v.numbers, [](float x) { return x < 0; })) / count;
  }

  /// Returns the one vector for which `is_odd` holds if `is_usual` holds for all others; nullptr: none.
  template <class Odd, class Usual>
  static const LayerVector* only(const LayerVectors& vectors, const Odd& is_odd, const Usual& is_usual) {
    const LayerVector* found = nullptr;
    for (const LayerVector& v : vectors) {
      if (is_usual(v)) continue;
      if (found != nullptr || !is_odd(v)) return nullptr;
      found = &v;
    }
    return found;
  }

  /// Returns the smallest and largest mean of all vectors but one.
  static std::pair<double, double> range_of_others(const LayerVectors& vectors, const LayerVector* one) {
    double least = INFINITY, most = -INFINITY;
    for (const LayerVector& v : vectors) {
      if (&v == one) continue;
      least = std::min(least, v.mean);
      most = std::max(most, v.mean);
    }
    return {least, most};
  }

  /// Reports a norm of weights of both signs if those of all other layers are positive, and 1 more would be
  /// of their size.
  void check_less_one(const LayerVectors& vectors) {
    constexpr double kMixed = 0.25, kHardlyAny = 0.01;
    const LayerVector* v = only(
        vectors, [](const LayerVector& x) { return x.negative >= kMixed; },
        [](const LayerVector& x) { return x.negative <= kHardlyAny; });
    if (v == nullptr) return;
    const auto [least, most] = range_of_others(vectors, v);
    if (v->mean + 1 < least / 2 || v->mean + 1 > 2 * most) return;
    v->member->reported = true;
    sink_.add(
        "layer-outlier", place(*v->member),
        "expected positive weights with a mean of {:.3g} to {:.3g}, as other layers have, found {:.3g}, "
        "and {:.0f} % negative, as of weights less 1",
        least, most, v->mean, 100 * v->negative);
  }

  /// Reports decays that are all negative, and whose logarithms without the sign are like those of others.
  void check_decays(const LayerVectors& vectors) {
    const auto is_negative = [](const LayerVector& x) {
      return std::ranges::all_of(x.numbers, [](float a) { return a < 0; });
    };
    const LayerVector* v = only(vectors, is_negative, [](const LayerVector& x) { return x.negative < 0.5; });
    if (v == nullptr) return;
    double logarithm = 0;
    for (const float x : v->numbers) logarithm += std::log(-double{x});
    logarithm /= static_cast<double>(v->numbers.size());
    const auto [least, most] = range_of_others(vectors, v);
    constexpr double kNear = 1;
    if (logarithm < least - kNear || logarithm > most + kNear) return;
    v->member->reported = true;
    sink_.add("layer-outlier", place(*v->member),
              "expected logarithms with a mean of {:.3g} to {:.3g}, as other layers have, found {:.3g}, and "
              "all negative, as of -exp of them",
              least, most, v->mean);
  }

  /// Reports taps in reverse order: those of all other layers rise alike.
  void check_taps(const LayerVectors& vectors) {
    constexpr double kAlike = 0.8;
    const auto taps = static_cast<size_t>(shape_of(*vectors[0].member).back());
    constexpr size_t kFewestTaps = 3, kMostTaps = 16;
    if (taps < kFewestTaps || taps > kMostTaps) return;
    std::vector<std::vector<double>> levels;
    for (const LayerVector& v : vectors) {
      std::vector<double> sums(taps);
      for (size_t i = 0; i < v.numbers.size(); ++i) sums[i % taps] += double{v.numbers[i]} * v.numbers[i];
      for (double& x : sums) x = std::log2(x);
      if (!std::ranges::all_of(sums, [](double x) { return std::isfinite(x); })) return;
      levels.push_back(std::move(sums));
    }
    for (size_t i = 0; i < vectors.size(); ++i) {
      const std::vector<double> reversed(levels[i].rbegin(), levels[i].rend());
      const size_t first = i == 0 ? 1 : 0;
      bool is_reversed = correlation_of(reversed, levels[first]) >= kAlike;
      for (size_t k = 0; k < vectors.size(); ++k) {
        if (k == i) continue;
        is_reversed = is_reversed && correlation_of(levels[k], levels[first]) >= kAlike &&
                      correlation_of(levels[i], levels[k]) <= -kAlike / 2;
      }
      if (!is_reversed) continue;
      vectors[i].member->reported = true;
      sink_.add("layer-outlier", place(*vectors[i].member),
                "expected {} taps that grow as those of {} other layers do, found them in reverse order",
                taps, vectors.size() - 1);
      return;
    }
  }

  /// Reports keys and values of a layer that are exchanged: the ratio of their RMS is the reciprocal of that
  /// in all other layers, which have nearly one ratio.
  void check_exchanged() {
    std::map<std::pair<std::string, int64_t>, std::array<Member*, 2>> layers;
    for (Member& m : members_) {
      if (!m.is_linear || m.at.layer < 0 || m.at.expert >= 0 || !std::isfinite(m.log2_rms)) continue;
      for (const size_t i : {0u, 1u}) {
        const std::string leaf = i == 0 ? "k_proj" : "v_proj";
        if (m.at.kind.ends_with("." + leaf))
          layers[{m.at.kind.substr(0, m.at.kind.size() - leaf.size()), m.at.layer}][i] = &m;
      }
    }
    std::map<std::string, std::vector<std::array<Member*, 2>>> kinds;
    for (const auto& [key, pair] : layers) {
      if (pair[0] != nullptr && pair[1] != nullptr && shape_of(*pair[0]) == shape_of(*pair[1]))
        kinds[key.first].push_back(pair);
    }
    constexpr size_t kFewestPairs = 4;
    constexpr double kClear = 0.4, kSpread = 0.3;  // octaves
    for (const auto& [kind, pairs] : kinds) {
      if (pairs.size() < kFewestPairs) continue;
      const auto ratio = [&](size_t i) { return pairs[i][0]->log2_rms - pairs[i][1]->log2_rms; };
      for (size_t i = 0; i < pairs.size(); ++i) {
        double least = INFINITY, most = -INFINITY;
        for (size_t k = 0; k < pairs.size(); ++k) {
          if (k == i) continue;
          least = std::min(least, ratio(k));
          most = std::max(most, ratio(k));
        }
        const bool is_clear = (least > kClear || most < -kClear) && most - least < kSpread;
        if (!is_clear || std::fabs(ratio(i) + (least + most) / 2) > kSpread / 2) continue;
        for (Member* m : pairs[i]) m->reported = true;
        sink_.add("layer-outlier", place(*pairs[i][0]),
                  "expected an RMS of {:.3g} to {:.3g} times that of v_proj, as other layers have, found "
                  "{:.3g}, as of k_proj and v_proj exchanged",
                  std::exp2(least), std::exp2(most), std::exp2(ratio(i)));
      }
    }
  }

  const LintInput& s_;
  std::span<Member> members_;
  LintReporter& sink_;
};

}  // namespace

void lint_layer_vectors(const LintInput& input, std::span<Member> members, LintReporter& reporter) {
  LayerVectorChecks(input, members, reporter).run();
}

}  // namespace twofour
