#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/recipe/statistics/statistics.h"

namespace twofour {

/// Methods of choosing weights by statistics of their inputs. kJoint chooses mask, scales and codes together,
/// and kGptq does the same without a pattern. kWanda uses only the diagonal, and kRtn does the same without a
/// pattern. kMagnitude uses no statistics. kSparseGpt chooses the mask first, and exists for artifacts of
/// 0.2.0 or earlier.
enum class SolveBy { kJoint, kGptq, kWanda, kRtn, kMagnitude, kSparseGpt };

/// The settings of a rule that say how statistics choose weights. Settings that are not given mean what they
/// meant in 0.2.0: no shrink, scales searched to 2 codes above, and damped weights of squares.
struct SolvingSettings {
  std::optional<SolveBy> by = {};        ///< without it, the best method that the file permits
  int sweeps = -1;                       ///< below 0, the method's default
  std::optional<double> shrink = {};     ///< see Regularization
  std::optional<int> scale_search = {};  ///< codes above the scale of the largest weight
};

/// The way in which the weights of a matrix are chosen under an entry of a statistics file.
struct Solving {
  enum class Method {
    kPlain,     ///< the method without statistics
    kDiagonal,  ///< "wanda", or "rtn" without a pattern. Damping 0 stands for importance_weights()
    kFull       ///< "joint", or "gptq" without a pattern
  };
  bool needs_factor() const { return method == Method::kFull; }
  Method method = Method::kPlain;
  const StatisticsEntry* entry = nullptr;  ///< null for kPlain
  /// Position in Statistics::tensors() of the target offset, which gives the difference between target and
  /// weights. Empty if there is no difference.
  std::optional<size_t> target_offset{};
  const StatisticsEntry* heldout = nullptr;  ///< the same linears over held-out tokens; may be null
  double damping = 0.01;
  double shrink = 0;     ///< see Regularization; for products of two inputs
  int scale_search = 2;  ///< codes above the scale of the largest weight
  int sweeps = 0;        ///< sweeps of descent
  std::string why = {};  ///< the reason why a full Hessian with descent was not used, if it was requested
};

/// The share of the target offset C that goes into the target W' of weights W: W' = W + 0.5 C (H + lambda
/// I)^-1. H is the Hessian, and lambda its damping.
inline constexpr float kTargetShare = 0.5f;

/// The largest magnitude of a target, as a multiple of the largest weight of its matrix. The part that a
/// linear's output lacks is at most the residual stream, which is less than a thousand times the addition of
/// one linear. A larger target would contain nothing of the weights. If all weights are 0, there is no limit.
inline constexpr float kMostTarget = 1024;

/// Measures the distance of a matrix's targets from its weights.
class TargetExtent {
 public:
  /// Adds some rows of weights and their targets.
  void add(std::span<const float> weights, std::span<const float> target);
  /// The reason why these targets are too large to choose weights by: "expected targets up to 1024 times ...,
  /// found ...". Empty if they are not too large.
  std::string find_excess() const;
  /// The norm of the difference between targets and weights, divided by the norm of the weights. 0 if all
  /// weights are 0.
  double relative_change() const;

 private:
  float weight_ = 0, target_ = 0;  ///< largest magnitudes; NaN in a target counts as infinite
  double energy_ = 0, change_ = 0;
};

/// The name of a method: "joint", "gptq", "wanda", "rtn" or "plain".
std::string_view solving_name(const Solving& solving, bool has_pattern);

/// The settings that rules get if they do not give them. Statistics of plain tokens are shrunk by 0.5 or,
/// with a pattern, by 0.1, those of guided tokens by 0.2 or 0.05. Measured on SmolLM2: examples/smollm2.
double default_shrink(const Statistics& statistics, bool has_pattern);
inline constexpr int kDefaultScaleSearch = 7;
/// The same for scales that are powers of two.
inline constexpr int kDefaultPowerSearch = 1;

/// The damping with which the Hessian of an entry is factorized. It is larger for an entry with few tokens
/// per input.
double damping_of(const StatisticsEntry& entry);

/// Scales means over tokens of products by a power of four, so that no product of float32 numbers vanishes or
/// overflows. `mean` is [k, k], or [k] if it is only a diagonal. If the average of the non-zero numbers on
/// the diagonal is outside of 2^-32 to 2^32, all numbers are multiplied by the power that brings this average
/// into [1, 4). The scale does not change which weights are chosen. Returns the factor.
double take_unit(std::span<float> mean, int64_t k);

/// Chooses the method for a linear. The best method depends on the number of tokens T and the number of
/// inputs K, or on the order K of a block. With a Hessian, T >= 4 K gives "joint" or "gptq" with descent, and
/// K <= T < 4 K gives the same with damping 0.1 and without descent. With T < K, or with only a diagonal, it
/// is "wanda" or "rtn". Without tokens, it is "plain".
Solving choose_solving(const Statistics& statistics, std::string_view linear, const SolvingSettings& words,
                       bool has_pattern);

/// The largest number of threads that choose weights of one matrix together.
inline constexpr int kSolverThreads = 8;

/// The memory in bytes that a worker needs to choose weights by a method.
uint64_t solving_bytes(const Solving& solving);

}  // namespace twofour
