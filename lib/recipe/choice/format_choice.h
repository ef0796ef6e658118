#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace twofour {

/// A format that a unit may get.
struct FormatOption {
  std::string format;  ///< for messages: "nvfp4"
  uint64_t cost;       ///< size of the unit in this format, in bits or in bytes
  double loss;         ///< predicted loss of the model
};

/// Linears that get one format, with the formats that they may get.
struct ChoiceUnit {
  std::string name;  ///< "model.layers.0.self_attn.qkv_proj"
  std::vector<FormatOption> options;
};

/// An option for each unit.
struct FormatChoice {
  std::vector<size_t> options;  ///< index of the option of each unit
  uint64_t cost = 0;            ///< sum over units
  double loss = 0;              ///< sum over units
  double least_loss = 0;        ///< no choice of this cost has a smaller loss
  bool is_best = false;         ///< no choice of this cost is better, except by rounding
};

/// The lower convex hull of all choices: each step gives one unit its next option, and saves less loss per
/// cost than the step before.
struct FormatCurve {
  struct Step {
    size_t unit, option;
    uint64_t cost;  ///< cost of the whole choice after the step
    double loss;
    double saved;  ///< loss that the step saves per cost
  };
  FormatChoice first;  ///< every unit has its cheapest option
  std::vector<Step> steps;
};

/// The cost of the cheapest options of all units.
uint64_t least_cost(std::span<const ChoiceUnit> units);

/// Returns the curve. Steps that save equally are in the order of units. Throws Error if a unit has no
/// options, and if a loss is negative or not finite.
FormatCurve format_curve(std::span<const ChoiceUnit> units);

/// Chooses an option for each unit, so that the sum of costs is at most `limit` and the sum of losses is
/// least. The curve gives a first choice and a bound. Options that the bound does not exclude are then
/// searched exactly, as far as kMostPartialChoices permits. Source: Pisinger, A minimal algorithm for the
/// multiple-choice knapsack problem, 1995. The same units and limit give the same choice. Throws Error like
/// format_curve(), and if `limit` is below least_cost().
FormatChoice choose_formats(std::span<const ChoiceUnit> units, uint64_t limit);

/// The number of partial choices that the search keeps. If there are more, it drops those with the largest
/// bound, and the choice may not be the best.
inline constexpr size_t kMostPartialChoices = 1 << 15;

}  // namespace twofour
