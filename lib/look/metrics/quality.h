#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/json.h"
#include "kernels/device/isa.h"
#include "kernels/pack/prune_pack.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/hash.h"

namespace twofour {

/// The loss that pruning causes in some weights. Figures are sums of exact integers in a fixed order, so that
/// they are the same for any number of jobs and any instruction set.
struct Quality {
  double energy = 0;       ///< sum of squared weights
  double kept_energy = 0;  ///< sum of squares of the weights that are kept
  uint64_t quads = 0, tied = 0;
  double fold_energy = 0;  ///< sum of squared weights with a folded global scale, before
  double fold_error = 0;   ///< sum of squared changes by rounding their block scales again

  void add(const PruneStats& stats, double global_scale);
  Quality& operator+=(const Quality& other);
  bool operator==(const Quality&) const = default;

  double retained_energy() const { return energy > 0 ? kept_energy / energy : 1; }
  /// The Frobenius norm of the pruned weights, divided by the norm of all weights.
  double relative_error() const;
  /// In dB. Infinite if nothing was lost.
  double snr_db() const;
  double cosine() const;
  /// The share of quads (octets for 4:8-paired) in which a tie was decided.
  double tied_share() const { return quads > 0 ? static_cast<double>(tied) / static_cast<double>(quads) : 0; }
};

/// The error that encoding causes in some weights. Sums are added row by row, so that they are the same for
/// any number of jobs, any row blocks and any instruction set.
struct EncodeError {
  double energy = 0;  ///< sum of squared weights
  double error = 0;   ///< sum of squared changes

  /// Adds rows of weights [rows, k] and `back`, the values that are read back for them.
  void add(std::span<const float> weights, std::span<const float> back, int64_t k, Isa isa);
  /// Adds weights that are read back unchanged.
  void add_exact(std::span<const float> weights, int64_t k, Isa isa);
  EncodeError& operator+=(const EncodeError& other);
  /// In the Frobenius norm.
  double relative_error() const;
  /// In dB. Infinite if nothing was lost.
  double snr_db() const;
  bool operator==(const EncodeError&) const = default;
};

/// The number of bytes of a matrix that differ from the reference checkpoint.
struct KeptDifference {
  bool compared = false;
  uint64_t codes = 0, scales = 0;  ///< different bytes
  uint64_t bytes = 0;              ///< compared bytes
  std::string first;               ///< the first difference: place, expected and found; or empty
  bool operator==(const KeptDifference&) const = default;
};

/// Counts of FP8 tiles in a cast from a format of four bits. The weights of a tile share a scale.
struct CastTiles {
  uint64_t count = 0, inexact = 0;  ///< `inexact` counts tiles with a rounded value
  bool operator==(const CastTiles&) const = default;
};

/// The loss that encoding causes in the outputs of some rows, computed from statistics of their inputs.
struct OutputLoss {
  std::string method = {};  ///< "joint", "gptq", "wanda" or "rtn"; empty without statistics
  double loss = 0;          ///< sum over rows of d H d', where d is a row's change and H the mean of x x'
  double energy = 0;        ///< sum over rows of w H w', where w is a row
  /// The same two sums with statistics of held-out tokens. 0 if the file has none.
  double heldout_loss = 0, heldout_energy = 0;
  /// The sum over rows of d He d', where He is the mean of x x' weighted by the squared gradients of the
  /// model's loss. It is the increase of the model's loss, up to a factor that is the same for all matrices.
  /// 0 if the file has no He.
  double expected_loss = 0;
  /// The loss of the weights, and of weights that are rounded without statistics. Both are compared with the
  /// target of the rows, which differs from them if it includes an error of earlier linears. 0 unless
  /// Rule::measures_rounding.
  double target_loss = 0, rounded_loss = 0;
  OutputLoss& operator+=(const OutputLoss& other);
  /// The loss divided by the energy. It is a ratio of squares, so its square root is the relative error of
  /// the output.
  double relative() const { return energy > 0 ? loss / energy : 0; }
  double target_relative() const { return energy > 0 ? target_loss / energy : 0; }
  double rounded_relative() const { return energy > 0 ? rounded_loss / energy : 0; }
  double heldout_relative() const { return heldout_energy > 0 ? heldout_loss / heldout_energy : 0; }
  bool operator==(const OutputLoss&) const = default;
};

/// The result of encoding one matrix.
struct EncodedResult {
  Hash128 source;             ///< hash of the weights as float32, row after row
  uint32_t global_scale = 0;  ///< float32 bits as written; 0 for FP8
  bool cast = false;          ///< true for a cast from four bits to FP8
  CastTiles tiles;            ///< for FP8
  uint64_t lost = 0;          ///< for MX formats, weights that became 0, see count_lost_mx()
  EncodeError error;          ///< error of the written weights
  EncodeError pruned_after;   ///< error if the codes were pruned instead
  OutputLoss output;
  KeptDifference kept;
  std::vector<std::string> problems;  ///< weights that cannot be encoded; then nothing was written
  Findings findings;
  bool operator==(const EncodedResult&) const = default;
};

/// A quality as numbers that read back unchanged.
Json to_json(const Quality& quality);
Quality quality_from_json(const Json& json);
/// Figures for twofour.json, rounded so that the last bit of a library's logarithm does not show.
Json quality_figures(const Quality& quality);

/// The result of encoding a matrix, as numbers that read back unchanged.
Json to_json(const EncodedResult& result);
EncodedResult encoded_from_json(const Json& json);
Json error_figures(const EncodeError& error);
void add_loss_figures(const OutputLoss& loss, Json& quality);

}  // namespace twofour
