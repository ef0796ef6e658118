#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/statistics/statistics.h"

namespace twofour {

/// How weights are asked to be chosen by statistics of their inputs: mask, scales and codes together; without
/// a pattern; by the diagonal alone; likewise without a pattern; as without a file; in an artifact of 0.2.0
/// or before, by SparseGPT, the mask first.
enum class SolveBy { kJoint, kGptq, kWanda, kRtn, kMagnitude, kSparseGpt };

/// How a matrix is solved under an entry of a statistics file.
struct Solving {
  enum class Method {
    kPlain,     ///< as without statistics
    kDiagonal,  ///< "wanda", or "rtn" without a pattern
    kFull       ///< "joint", or "gptq" without a pattern
  };
  bool needs_factor() const { return method == Method::kFull; }
  Method method = Method::kPlain;
  const StatisticsEntry* entry = nullptr;  ///< none: kPlain
  /// Of Statistics::tensors(): what the target differs by from the weights. None: not at all.
  std::optional<size_t> target_offset{};
  const StatisticsEntry* heldout = nullptr;  ///< of the same linears over other tokens; none: not reported
  double damping = 0.01;
  int sweeps = 0;        ///< of descent
  std::string why = {};  ///< why it is not a full Hessian with descent; empty: it is, or was not asked for
};

/// The share of the target offset that goes into the target: W' = W + 0.5 C (H + lambda I)^-1.
inline constexpr float kTargetShare = 0.5f;

/// A target may have numbers up to this many times the largest weight of its matrix. What a linear's output
/// lacks is at most what the residual stream holds, which is no thousand times what one linear adds to it; a
/// target beyond has nothing of the weights. Where all weights are 0 they say nothing of a target.
inline constexpr float kMostTarget = 1024;

/// How far the targets of a matrix are from its weights.
class TargetExtent {
 public:
  /// Some rows of weights and their targets.
  void add(std::span<const float> weights, std::span<const float> target);
  /// Why no weights are chosen by such a target: "expected targets up to 1024 times ..., found ..."; empty
  /// where they may be.
  std::string find_excess() const;
  /// The norm of what the targets differ by over that of the weights; 0 where these are all 0.
  double relative_change() const;

 private:
  float weight_ = 0, target_ = 0;  ///< largest magnitudes; a target that is NaN counts as infinite
  double energy_ = 0, change_ = 0;
};

/// "joint", "gptq", "wanda", "rtn" or "plain".
std::string_view solving_name(const Solving& solving, bool has_pattern);

/// The damping under which an entry is factorized: more where it has few tokens an input.
double damping_of(const StatisticsEntry& entry);

/// Means over tokens of products are solved in units of a power of four, so that no product of float32
/// numbers vanishes or overflows: where those on the diagonal that are not 0 are outside of 2^-32 to 2^32 on
/// average, all are multiplied by the power that brings their average to 1 or above, below 4. A unit changes
/// no weight that is chosen. `mean` [k, k], or [k] its diagonal. -> what it was multiplied by.
double take_unit(std::span<float> mean, int64_t k);

/// What a file says of a linear of K inputs. `by`: none for the best that the file holds; `sweeps` below 0:
/// the method's own. With T tokens (of blocks, K is their order), from a full Hessian: T >= 4 K joint or gptq
/// with descent; K <= T < 4 K damping 0.1 and no descent; below that, and of a diagonal, wanda or rtn.
/// Without tokens, plain.
Solving choose_solving(const Statistics& statistics, std::string_view linear, std::optional<SolveBy> by,
                       int sweeps, bool has_pattern);

/// Threads that solve rows of a matrix together, at most.
inline constexpr int kSolverThreads = 8;

/// Bytes that solving takes of a worker.
uint64_t solving_bytes(const Solving& solving);

}  // namespace twofour
