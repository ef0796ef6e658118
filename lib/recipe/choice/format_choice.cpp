#include "lib/recipe/choice/format_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/error.h"

namespace twofour {
namespace format_choice {
namespace {

using Units = std::span<const ChoiceUnit>;

void check_options(Units units) {
  for (const ChoiceUnit& unit : units) {
    if (unit.options.empty())
      throw Error(fmt::format("{}: expected a format that it may get, found none", unit.name));
    for (const FormatOption& o : unit.options) {
      if (std::isfinite(o.loss) && o.loss >= 0) continue;
      throw Error(
          fmt::format("{}: expected a loss of 0 or more in {}, found {}", unit.name, o.format, o.loss));
    }
  }
}

/// The options of a unit on the lower convex hull, from the cheapest on. Losses fall.
std::vector<size_t> hull_of(const ChoiceUnit& unit) {
  const auto& o = unit.options;
  std::vector<size_t> order(o.size()), hull;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (o[a].cost != o[b].cost) return o[a].cost < o[b].cost;
    return o[a].loss != o[b].loss ? o[a].loss < o[b].loss : a < b;
  });
  const auto saved = [&](size_t from, size_t to) {
    return (o[from].loss - o[to].loss) / static_cast<double>(o[to].cost - o[from].cost);
  };
  for (const size_t i : order) {
    if (!hull.empty() && o[i].loss >= o[hull.back()].loss) continue;
    while (hull.size() > 1 && saved(hull.back(), i) >= saved(hull[hull.size() - 2], hull.back()))
      hull.pop_back();
    hull.push_back(i);
  }
  return hull;
}

/// Adds up the cost and the loss of the options.
void add_up(Units units, FormatChoice& choice) {
  choice.cost = 0, choice.loss = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const FormatOption& o = units[i].options[choice.options[i]];
    choice.cost += o.cost, choice.loss += o.loss;
  }
}

/// The choice by steps of the curve. A step that does not fit ends the steps of its unit.
struct Stepped {
  FormatChoice choice;
  double price = 0;  ///< loss that the first step that does not fit would save per cost; 0 if all fit
};

Stepped take_steps(Units units, const FormatCurve& curve, uint64_t limit) {
  Stepped found{curve.first};
  std::vector<bool> stopped(units.size());
  uint64_t cost = curve.first.cost;
  for (const FormatCurve::Step& step : curve.steps) {
    if (stopped[step.unit]) continue;
    const auto& options = units[step.unit].options;
    size_t& now = found.choice.options[step.unit];
    const uint64_t more = options[step.option].cost - options[now].cost;
    if (more > limit - cost) {
      stopped[step.unit] = true;
      if (found.price == 0) found.price = step.saved;
      continue;
    }
    cost += more;
    now = step.option;
  }
  add_up(units, found.choice);
  return found;
}

/// The search among the options that the bound does not exclude. With a price of cost, each option has an
/// excess of loss + price * cost over the least of its unit. The loss of a choice is the bound plus the sum
/// of excesses plus the price of what is left of the limit.
class Search {
 public:
  Search(Units units, uint64_t limit, double price, const FormatChoice& known)
      : units_(units), limit_(limit), price_(price), best_(known) {
    double least = 0;
    for (const ChoiceUnit& unit : units) {
      double low = std::numeric_limits<double>::infinity();
      for (const FormatOption& o : unit.options) low = std::min(low, priced(o));
      floors_.push_back(low);
      least += low;
    }
    best_.least_loss = std::max(0.0, least - price * static_cast<double>(limit));
    gap_ = best_.loss - best_.least_loss;
    rounding_ = 1e-13 * (std::abs(least) + best_.loss);
  }

  FormatChoice run() {
    best_.is_best = true;
    if (gap_ <= rounding_ || !find_candidates()) return best_;
    std::vector<Partial> partials = {{0, 0, 0, 0, 0}};
    for (size_t i = 0; i < units_.size() && !partials.empty(); ++i) partials = extend(i, std::move(partials));
    const Partial* end = nullptr;
    for (const Partial& p : partials) {
      if (end == nullptr || p.loss < end->loss) end = &p;
    }
    if (end != nullptr && end->loss < best_.loss - rounding_) take(*end);
    return best_;
  }

 private:
  /// Options of the first units. Each list is in the order of cost, with losses that fall.
  struct Partial {
    uint64_t cost;
    double loss, excess;
    uint32_t before;  ///< index in the list of one unit less
    uint32_t option;
  };

  double priced(const FormatOption& o) const { return o.loss + price_ * static_cast<double>(o.cost); }

  /// Finds the options that may be in a better choice. Returns false if a unit has none.
  bool find_candidates() {
    candidates_.resize(units_.size());
    rest_.assign(units_.size() + 1, {0, 0});
    for (size_t i = units_.size(); i-- > 0;) {
      const auto& options = units_[i].options;
      uint64_t low = std::numeric_limits<uint64_t>::max(), high = 0;
      for (size_t j = 0; j < options.size(); ++j) {
        if (priced(options[j]) - floors_[i] >= gap_ + rounding_) continue;
        candidates_[i].push_back(static_cast<uint32_t>(j));
        low = std::min(low, options[j].cost), high = std::max(high, options[j].cost);
      }
      if (candidates_[i].empty()) return false;
      rest_[i] = {rest_[i + 1].low + low, rest_[i + 1].high + high};
    }
    return true;
  }

  std::vector<Partial> extend(size_t unit, std::vector<Partial> partials) {
    std::vector<Partial> longer;
    longer.reserve(partials.size() * candidates_[unit].size());
    for (const uint32_t j : candidates_[unit]) {
      const FormatOption& o = units_[unit].options[j];
      const double excess = priced(o) - floors_[unit];
      for (size_t p = 0; p < partials.size(); ++p) {
        Partial next = {partials[p].cost + o.cost, partials[p].loss + o.loss, partials[p].excess + excess,
                        static_cast<uint32_t>(p), j};
        if (next.cost + rest_[unit + 1].low > limit_) continue;
        const uint64_t most = next.cost + rest_[unit + 1].high;
        const double unused = most < limit_ ? price_ * static_cast<double>(limit_ - most) : 0;
        if (next.excess + unused < gap_ + rounding_) longer.push_back(next);
      }
    }
    notes_.emplace_back();
    for (const Partial& p : partials) notes_.back().push_back({p.before, p.option});
    keep_best(longer);
    drop_dominated(longer);
    return longer;
  }

  /// Keeps at most kMostPartialChoices, those with the least excess.
  void keep_best(std::vector<Partial>& partials) {
    sort_by_cost(partials);
    drop_dominated(partials);
    if (partials.size() <= kMostPartialChoices) return;
    best_.is_best = false;
    std::stable_sort(partials.begin(), partials.end(),
                     [](const Partial& a, const Partial& b) { return a.excess < b.excess; });
    partials.resize(kMostPartialChoices);
    sort_by_cost(partials);
  }

  static void sort_by_cost(std::vector<Partial>& partials) {
    std::stable_sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
      return a.cost != b.cost ? a.cost < b.cost : a.loss < b.loss;
    });
  }

  /// Drops partial choices that another one beats in cost and in loss.
  static void drop_dominated(std::vector<Partial>& partials) {
    double least = std::numeric_limits<double>::infinity();
    std::erase_if(partials, [&](const Partial& p) {
      if (p.loss >= least) return true;
      least = p.loss;
      return false;
    });
  }

  void take(const Partial& end) {
    uint32_t before = end.before, option = end.option;
    for (size_t i = units_.size(); i-- > 0;) {
      best_.options[i] = option;
      if (i > 0) option = notes_[i][before].option, before = notes_[i][before].before;
    }
    add_up(units_, best_);
  }

  struct Note {
    uint32_t before, option;
  };
  struct Rest {
    uint64_t low, high;  ///< least and largest cost of the units from here on
  };
  Units units_;
  uint64_t limit_;
  double price_, gap_ = 0, rounding_ = 0;
  FormatChoice best_;
  std::vector<double> floors_;
  std::vector<std::vector<uint32_t>> candidates_;
  std::vector<Rest> rest_;
  std::vector<std::vector<Note>> notes_;  ///< by unit, the partial choices before it
};

}  // namespace
}  // namespace format_choice

uint64_t least_cost(std::span<const ChoiceUnit> units) {
  uint64_t cost = 0;
  for (const ChoiceUnit& unit : units) {
    uint64_t low = std::numeric_limits<uint64_t>::max();
    for (const FormatOption& o : unit.options) low = std::min(low, o.cost);
    cost += unit.options.empty() ? 0 : low;
  }
  return cost;
}

FormatCurve format_curve(std::span<const ChoiceUnit> units) {
  format_choice::check_options(units);
  FormatCurve curve;
  for (size_t i = 0; i < units.size(); ++i) {
    const std::vector<size_t> hull = format_choice::hull_of(units[i]);
    curve.first.options.push_back(hull[0]);
    for (size_t j = 1; j < hull.size(); ++j) {
      const FormatOption &a = units[i].options[hull[j - 1]], &b = units[i].options[hull[j]];
      curve.steps.push_back({i, hull[j], b.cost - a.cost, a.loss - b.loss,
                             (a.loss - b.loss) / static_cast<double>(b.cost - a.cost)});
    }
  }
  format_choice::add_up(units, curve.first);
  std::stable_sort(curve.steps.begin(), curve.steps.end(),
                   [](const auto& a, const auto& b) { return a.saved > b.saved; });
  uint64_t cost = curve.first.cost;
  double loss = curve.first.loss;
  for (FormatCurve::Step& step : curve.steps) {
    step.cost = cost += step.cost;
    step.loss = loss -= step.loss;
  }
  return curve;
}

FormatChoice choose_formats(std::span<const ChoiceUnit> units, uint64_t limit) {
  const FormatCurve curve = format_curve(units);
  if (curve.first.cost > limit)
    throw Error(fmt::format("expected a size of {} or more, the least of these formats, found {}",
                            curve.first.cost, limit));
  const format_choice::Stepped found = format_choice::take_steps(units, curve, limit);
  return format_choice::Search(units, limit, found.price, found.choice).run();
}

}  // namespace twofour
