#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/weight_format.h"
#include "kernels/device/isa.h"
#include "kernels/numbers/quantize.h"
#include "kernels/pack/prune.h"
#include "kernels/solve/hessian.h"

namespace twofour {

/// Methods that choose coded weights under a Hessian. Definitions and the order of every sum are in
/// README.md.
///   joint     mask, block scale and codes in one pass over the columns, each column's error passed on to
///             later ones; without a pattern this is GPTQ with a search of block scales. Needs the factor.
///   diagonal  the mask of largest sum of w^2 d_j (Wanda), block scales by squares weighted with d_j, codes
///             to nearest. Needs only the diagonal d.
enum class SolveMethod { joint, diagonal };

struct SolveRule {
  SolveMethod method = SolveMethod::joint;
  std::optional<PrunePattern> pattern;           ///< empty for dense weights
  Arithmetic arithmetic = Arithmetic::modelopt;  ///< the arithmetic of the steps of blocks
  uint8_t zero_scale = 0x38;                     ///< the block scale of a block in which all codes are zero
  int sweeps = 0;           ///< number of sweeps of descent after the method; they need Hd
  float min_gain = 0.005f;  ///< a row stops after a sweep that removes less than this part of its loss
  int scale_search = 2;     ///< scales are tried up to so many codes above that of the largest weight
  /// The format that is written. Its row gives the grid of codes, the columns that share a scale and the form
  /// of scales: E4M3 under a global scale (NVFP4), powers of two (kMxFormats), or given ones (FP8).
  WeightFormat format = WeightFormat::kNvfp4;
};

/// True if every scale of a format is given by the largest weights of its tile.
constexpr bool has_fixed_scales(WeightFormat format) { return format->tiles && format->group == 0; }
/// The number of codes below the largest weight's scale, down to which scales are tried.
constexpr int scales_below(WeightFormat format) { return format->global_scale ? 12 : 1; }
/// The number of columns that share a scale in the solver.
constexpr int64_t solved_block(WeightFormat format) { return format->group > 0 ? format->group : 16; }

/// The rows to solve, [rows, k]. k is a multiple of 16, and of the columns that share a scale.
struct SolveInput {
  std::span<const float> weights;  ///< all weights are finite
  /// The columns to keep: [rows, k] with 1 for a column that stays and 0 for a column that becomes zero. It
  /// must match the pattern exactly. If it is empty, the solver chooses the columns.
  std::span<const uint8_t> mask = {};
  /// The given scales of a format with fixed scales, [rows, k/16].
  std::span<const float> steps = {};
};

struct SolveOutput {
  uint8_t* codes;   ///< [rows, k] codes, packed as the format stores them
  uint8_t* scales;  ///< [rows, k/block]; not written for fixed scales
};

/// The numbers that descent reads for each group of columns. They are computed from Hd.
class GroupMaps {
 public:
  GroupMaps(const DampedHessian& hessian, std::optional<PrunePattern> pattern);
  std::optional<PrunePattern> pattern() const { return pattern_; }
  std::span<const float> numbers() const { return numbers_; }

 private:
  std::optional<PrunePattern> pattern_;
  std::vector<float> numbers_;
};

/// The block scale of a block of zeros, by a rule and a global scale, as quantize_nvfp4 writes it.
uint8_t zero_scale_of(const QuantizeRule& rule, const GlobalScale& global);

/// True if rows can be solved under a global scale. This requires that its steps and their reciprocals are
/// normal numbers. For other global scales, whose weights are very small, quantize_nvfp4 must be used.
bool is_solvable(Arithmetic arithmetic, float stored_global_scale);
/// True if rows can be solved whose largest magnitude is `amax` in a format without a global scale. Squares
/// of others would vanish or overflow.
constexpr bool is_solvable(float amax) { return amax >= 0x1p-40f && amax <= 0x1p40f; }

/// Solves rows under a Hessian. `stored` is the global scale as in the checkpoint, or 1 for a format without
/// one; it is not changed. `maps`
/// are read if rule.sweeps > 0, and must belong to the same Hessian and pattern. Writes codes and scales;
/// zero codes are 0x0. The bytes do not depend on the number of threads, the division of rows over calls, or
/// the instruction set.
void solve_rows(const SolveRule& rule, const DampedHessian& hessian, const GroupMaps* maps, float stored,
                const SolveInput& in, const SolveOutput& out, int threads = 1, Isa isa = best_isa());

/// Solves rows with only the diagonal of a Hessian, damped or importance_weights(), by SolveMethod::diagonal
/// without sweeps.
void solve_rows_by_diagonal(const SolveRule& rule, std::span<const float> diagonal, float stored,
                            const SolveInput& in, const SolveOutput& out, int threads = 1,
                            Isa isa = best_isa());

}  // namespace twofour
