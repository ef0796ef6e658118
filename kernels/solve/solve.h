#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/isa.h"
#include "kernels/numbers/quantize.h"
#include "kernels/pack/prune.h"
#include "kernels/solve/hessian.h"

namespace twofour {

/// Methods that choose NVFP4 weights under a Hessian. Definitions and the order of every sum are in
/// README.md.
///   joint     mask, block scale and codes in one pass over the columns, each column's error passed on to
///             later ones; without a pattern this is GPTQ with a search of block scales. Needs the factor.
///   diagonal  the mask of largest sum of w^2 Hd_jj (Wanda), block scales by squares weighted with Hd_jj,
///             codes to nearest. Needs the diagonal alone.
enum class SolveMethod { joint, diagonal };

struct SolveRule {
  SolveMethod method = SolveMethod::joint;
  std::optional<PrunePattern> pattern;           ///< none: dense
  Arithmetic arithmetic = Arithmetic::modelopt;  ///< the arithmetic of a block's step
  uint8_t zero_scale = 0x38;                     ///< the block scale of a block of zero codes
  int sweeps = 0;                                ///< of descent, after the method; needs Hd
  float min_gain = 0.005f;  ///< a row stops after a sweep that removes a smaller part of its loss
};

/// Rows to solve: [rows, k], k a multiple of 16.
struct SolveInput {
  std::span<const float> weights;  ///< finite
  /// Columns that stay, 1, or become zero, 0: [rows, k], exactly of the pattern. Empty: the solver chooses.
  std::span<const uint8_t> mask = {};
};

struct SolveOutput {
  uint8_t* codes;   ///< [rows, k/2]
  uint8_t* scales;  ///< [rows, k/16]
};

/// The numbers from Hd that descent reads for each group of columns of a mask.
class GroupMaps {
 public:
  GroupMaps(const DampedHessian& hessian, std::optional<PrunePattern> pattern);
  std::optional<PrunePattern> pattern() const { return pattern_; }
  std::span<const float> numbers() const { return numbers_; }

 private:
  std::optional<PrunePattern> pattern_;
  std::vector<float> numbers_;
};

/// The block scale of a block of zeros by a rule and a global scale, as quantize_nvfp4 writes it.
uint8_t zero_scale_of(const QuantizeRule& rule, const GlobalScale& global);

/// True if rows can be solved under a global scale: its steps and their reciprocals are normal numbers. Other
/// scales belong to weights so small that quantize_nvfp4 must be used.
bool is_solvable(Arithmetic arithmetic, float stored_global_scale);

/// Solves rows under a Hessian; `stored` is the global scale as in the checkpoint and is not changed. `maps`
/// are read if rule.sweeps > 0 and must be of the same Hessian and pattern. Writes codes and scales; zero
/// codes are 0x0. The same bytes for any number of threads, any division of rows over calls, and any
/// instruction set.
void solve_rows(const SolveRule& rule, const DampedHessian& hessian, const GroupMaps* maps, float stored,
                const SolveInput& in, const SolveOutput& out, int threads = 1, Isa isa = best_isa());

/// Solves rows by the diagonal of a Hessian alone: SolveMethod::diagonal, no sweeps.
void solve_rows_by_diagonal(const SolveRule& rule, std::span<const float> diagonal, float stored,
                            const SolveInput& in, const SolveOutput& out, int threads = 1,
                            Isa isa = best_isa());

}  // namespace twofour
