#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/recipe/statistics/statistics.h"

namespace twofour {

/// Methods of choosing weights by statistics of their inputs: mask, scales and codes together; the same
/// without a pattern; by the diagonal alone; the same without a pattern; as without a file; and SparseGPT
/// with the mask first, for artifacts of 0.2.0 or earlier.
enum class SolveBy { kJoint, kGptq, kWanda, kRtn, kMagnitude, kSparseGpt };

/// The way in which the weights of a matrix are chosen under an entry of a statistics file.
struct Solving {
  enum class Method {
    kPlain,     ///< as without statistics
    kDiagonal,  ///< "wanda", or "rtn" without a pattern
    kFull       ///< "joint", or "gptq" without a pattern
  };
  bool needs_factor() const { return method == Method::kFull; }
  Method method = Method::kPlain;
  const StatisticsEntry* entry = nullptr;  ///< none: kPlain
  /// Position in Statistics::tensors() of the difference between target and weights. None: there is no
  /// difference.
  std::optional<size_t> target_offset{};
  const StatisticsEntry* heldout = nullptr;  ///< of the same linears over other tokens; none: not reported
  double damping = 0.01;
  int sweeps = 0;        ///< of descent
  std::string why = {};  ///< why it is not a full Hessian with descent; empty: it is, or was not requested
};

/// The share of the target offset that goes into the target: W' = W + 0.5 C (H + lambda I)^-1.
inline constexpr float kTargetShare = 0.5f;

/// A target may have numbers up to this many times the largest weight of its matrix. The part that a linear's
/// output lacks is at most the residual stream, which is less than a thousand times what one linear adds to
/// it; a target beyond that contains nothing of the weights. If all weights are 0 they set no limit.
inline constexpr float kMostTarget = 1024;

/// The distance of a matrix's targets from its weights.
class TargetExtent {
 public:
  /// Adds some rows of weights and their targets.
  void add(std::span<const float> weights, std::span<const float> target);
  /// The reason why no weights are chosen by such a target: "expected targets up to 1024 times ..., found
  /// ..."; empty if they may be.
  std::string find_excess() const;
  /// The norm of the difference between targets and weights over that of the weights; 0 if these are all 0.
  double relative_change() const;

 private:
  float weight_ = 0, target_ = 0;  ///< largest magnitudes; a NaN target counts as infinite
  double energy_ = 0, change_ = 0;
};

/// "joint", "gptq", "wanda", "rtn" or "plain".
std::string_view solving_name(const Solving& solving, bool has_pattern);

/// The damping with which an entry is factorized: larger if it has few tokens per input.
double damping_of(const StatisticsEntry& entry);

/// Scales means over tokens of products by a power of four, so that no product of float32 numbers vanishes or
/// overflows. If the non-zero numbers on the diagonal average outside of 2^-32 to 2^32, all numbers are
/// multiplied by the power that brings this average to 1 or above, below 4. The scale does not change which
/// weights are chosen. `mean` [k, k], or [k] its diagonal. Returns the factor.
double take_unit(std::span<float> mean, int64_t k);

/// Chooses the method for a linear of K inputs. `by`: none for the best that the file permits; `sweeps` below
/// 0: the method's own. With T tokens (for blocks, K is their order), from a full Hessian: T >= 4 K joint or
/// gptq with descent; K <= T < 4 K damping 0.1 and no descent; below that, and from a diagonal, wanda or rtn.
/// Without tokens, plain.
Solving choose_solving(const Statistics& statistics, std::string_view linear, std::optional<SolveBy> by,
                       int sweeps, bool has_pattern);

/// The largest number of threads that choose weights of one matrix together.
inline constexpr int kSolverThreads = 8;

/// Bytes that a worker needs to choose weights.
uint64_t solving_bytes(const Solving& solving);

}  // namespace twofour
